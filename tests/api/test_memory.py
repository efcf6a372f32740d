"""The warning about a training that, by formula, does not fit into memory."""

from __future__ import annotations

import pytest
from support.mistake import Desk
from support.ranks import CORA

import clusterctl

MIB = 1 << 20
LARGE = 'workload = "synthetic"\n[train]\navg_num_nodes = 2000000\nbatch_size = 16384\n[resources]\nmemory = "{}"\n'


def test_what_does_not_fit_is_said_before_the_queue_with_settings_that_fit(desk: Desk) -> None:
    desk.write("job.toml", LARGE.format("1800M"))
    needed = clusterctl.plan("./job.toml").memory
    assert needed is not None
    assert needed.training > 1800 * MIB
    code, _, err = desk.type("submit ./job.toml --dry-run=slurm")
    assert code == 0, err
    assert "does not fit: by formula, training needs about" in err
    (hint,) = [line for line in err.splitlines() if "--set train.batch_size=" in line]
    settings = [word for word in hint.split() if word.startswith(("resources.", "train."))]
    assert settings
    for setting in settings:
        code, _, err = desk.type(f"submit ./job.toml --dry-run=slurm --set {setting}")
        assert "does not fit" not in err, setting
    assert f"memory: {str(needed).partition(': ')[2]}" in desk.type("submit ./job.toml --dry-run", batches=True)[2]


@pytest.mark.parametrize(
    ("job", "line"),
    [
        ('workload = "node-classification"\n[train]\nmodel = "my_net:Net"\n', "no formula for your own model"),
        ('workload = "graph-classification"\n[train]\nmodel = "my_net:Net"\n', "no formula for your own model"),
        (
            'workload = "node-classification"\n[train]\nmodel = "GAT"\n[train.options]\nheads = 4\n',
            "no formula for this model with this data",
        ),
        ('workload = "command"\nargv = ["python", "x.py"]\n', ""),
    ],
    ids=["own model", "own model of graphs", "unusual options", "program"],
)
def test_where_there_is_no_formula_a_dry_run_names_the_way_to_measure(desk: Desk, job: str, line: str) -> None:
    desk.write("my_net.py", "class Net: ...\n")
    desk.write("job.toml", f'{job}[data]\nroot = "{CORA}"\n' if "train" in job else job)
    code, _, err = desk.type("submit ./job.toml --dry-run")
    assert code == 0, err
    measured = [found for found in err.splitlines() if found.startswith("memory: ")]
    assert measured == (
        [f"memory: there is {line}; `clusterctl submit JOB --probe` measures a step on one node"] if line else []
    )


def test_what_fits_is_not_mentioned(desk: Desk) -> None:
    desk.write("job.toml", LARGE.format("1G").replace("2000000", "2000"))
    assert "memory" not in " ".join(check.name for check in clusterctl.plan("./job.toml").verify())


def test_a_gpu_that_is_too_small_is_said_as_unverified(desk: Desk) -> None:
    desk.write(
        "cluster/gpus.toml", 'kind = "emulator"\n[emulator]\nnodes = 1\ncpus_per_node = 4\ngpus_per_node = "t4:1"\n'
    )
    text = 'workload = "synthetic"\n[train]\navg_num_nodes = 60000000\nbatch_size = 4096\n[resources]\n'
    desk.write("job.toml", text + 'nodes = 1\ngpus_per_node = "t4:1"\n')
    checks = clusterctl.plan("./job.toml", cluster="gpus").verify()
    assert any("may not fit: by a formula that was never compared with a GPU" in check.message for check in checks)
    found = clusterctl.plan("./job.toml", cluster="gpus").memory
    assert found is not None
    assert "never compared with a GPU" in str(found)
