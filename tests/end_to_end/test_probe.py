"""`submit --probe`: a job on one node until its first step, and what it used."""

from __future__ import annotations

import json
from textwrap import dedent

import pytest
from support.ranks import CORA
from support.scenario import Stage

from clusterctl.shared.record.layout import RunDir

pytestmark = pytest.mark.parametrize("back_end", ["emulator"], indirect=True)

PROGRAM = """
import time
import clusterctl.program
held = bytearray(b"x") * (120 << 20)
for step in range(1, 10_000):
    clusterctl.program.log(step=step, loss=1.0)
    time.sleep(0.1)
"""


def test_a_probe_ends_its_run_after_a_step_and_shows_what_it_used(stage: Stage) -> None:
    (stage.folder / "train.py").write_text(PROGRAM)
    words = ["--nodes", "2", "--mem", "1G", "-o", "json", "--cluster", stage.cluster, "--", "python", "train.py"]
    done = stage.call("submit", "--probe", *words)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 120 << 20 < found["used"]["memory"] < 400 << 20
    assert (found["requested"]["memory"], found["requested"]["time"], found["enough"]["memory"]) == (
        1 << 30,
        1800,
        None,
    )
    assert "used until step " in done.stderr
    run = RunDir(stage.runs / found["id"])
    assert json.loads(run.run_json.read_text())["job"]["resources"]["nodes"] == 1
    stage.wait_for_state(run, "cancelled", seconds=60)


def test_a_probe_that_fails_shows_what_it_used_and_why(stage: Stage) -> None:
    (stage.folder / "train.py").write_text("raise MemoryError('a table of 9 TB')")
    done = stage.call("submit", "--probe", "--cluster", stage.cluster, "--", "python", "train.py")
    assert done.returncode == 1
    assert "used until its end" in done.stderr
    assert "ended: failed: " in done.stderr
    assert "a table of 9 TB" in done.stderr
    assert "hint: clusterctl why " in done.stderr


IMDB = CORA.parent / "IMDB-BINARY"
MODELS = {
    "layer": (
        """
        import torch
        class Net(torch.nn.Module):
            def __init__(self, features, classes):
                super().__init__()
                self.lines = torch.nn.ModuleList([torch.nn.Linear(features, 16), torch.nn.Linear(16, classes)])
            def layer(self, i, hop, x):
                rows = self.lines[i](x)
                return torch.zeros(hop.targets, rows.size(1)).index_add(0, hop.edge_index[1], rows[hop.edge_index[0]])
        """,
        f'workload = "node-classification"\n[data]\nroot = "{CORA}"\n[train]\nfan_out = [5, 5]\n',
    ),
    "x and edge_index": (
        """
        import torch
        from torch_geometric.nn import SAGEConv
        class Net(torch.nn.Module):
            def __init__(self, in_channels, out_channels):
                super().__init__()
                self.one, self.two = SAGEConv(in_channels, 16), SAGEConv(16, out_channels)
            def forward(self, x, edge_index):
                return self.two(self.one(x, edge_index).relu(), edge_index)
        """,
        f'workload = "node-classification"\n[data]\nroot = "{CORA}"\n[train]\nfan_out = [5, 5]\n',
    ),
    "graphs": (
        """
        import torch
        from torch_geometric.nn import GINConv, global_add_pool
        class Net(torch.nn.Module):
            def __init__(self, features, classes):
                super().__init__()
                self.conv, self.out = GINConv(torch.nn.Linear(features, 16)), torch.nn.Linear(16, classes)
            def forward(self, x, edge_index, batch):
                return self.out(global_add_pool(self.conv(x, edge_index).relu(), batch))
        """,
        f'workload = "graph-classification"\n[data]\nroot = "{IMDB}"\n[train]\nfolds = 1\n',
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_of_ones_own_is_probed_before_its_first_run(stage: Stage, kind: str) -> None:
    model, job = MODELS[kind]
    (stage.folder / "my_net.py").write_text(dedent(model))
    path = stage.write_job("mine", f'{job}model = "my_net:Net"\nepochs = 1000\n[resources]\nnodes = 2\nmemory = "2G"\n')
    assert (
        "there is no formula for your own model; `clusterctl submit JOB --probe`"
        in stage.call("submit", str(path), "--dry-run", "--cluster", stage.cluster).stderr
    )
    done = stage.call("submit", str(path), "--probe", "-o", "json", "--cluster", stage.cluster)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 200 << 20 < found["used"]["memory"] < 900 << 20
    assert "used until step " in done.stderr
    stage.wait_for_state(RunDir(stage.runs / found["id"]), "cancelled", seconds=60)


@pytest.mark.parametrize("option", ["--wait", "--hold", "--dry-run", "--sweep train.lr=1,2", "--in-allocation 7"])
def test_a_probe_goes_with_no_option_for_another_purpose(stage: Stage, option: str) -> None:
    done = stage.call("submit", "synthetic", "--probe", *option.split(), "--cluster", stage.cluster)
    assert done.returncode == 2
    assert f"it cannot be combined with {option.split()[0]}" in done.stderr
