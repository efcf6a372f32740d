"""The memory that `submit --dry-run` gives by formula, and the peak of a real run of each kind of built-in training."""

from __future__ import annotations

import re

import pytest
from support.ranks import CORA
from support.scenario import Stage

pytestmark = [pytest.mark.long, pytest.mark.parametrize("back_end", ["emulator"], indirect=True)]

AIM = 0.15
ON_CORA = f'[data]\nroot = "{CORA}"\n'
JOBS = {
    "taobao": 'workload = "taobao"\n[train]\ngenerated = 0.002\nepochs = 2\nbatch_size = 1024\n',
    "split": f'workload = "reddit"\nresources.nodes = 2\n{ON_CORA}placement = "split"\n[train]\nepochs = 2\n',
    "attention-from-disk": f'workload = "node-classification"\n{ON_CORA}cache = "1M"\n'
    '[train]\nmodel = "gat"\nepochs = 2\nfan_out = [10, 10]\n',
    "GraphSAGE": f'workload = "node-classification"\n{ON_CORA}[train]\nmodel = "GraphSAGE"\nepochs = 2\n',
    "GCN": f'workload = "node-classification"\n{ON_CORA}[train]\nmodel = "GCN"\nepochs = 2\n',
}


@pytest.mark.parametrize("kind", JOBS)
def test_a_run_needs_what_the_formula_gives(stage: Stage, kind: str) -> None:
    job = stage.write_job(kind, JOBS[kind])
    words = (str(job), "--cluster", stage.cluster)
    shown = stage.call("submit", *words, "--dry-run").stderr
    found = re.search(r"memory: about ([\d.]+) (MiB|GiB) on each node, by formula", shown)
    assert found, shown
    formula = float(found[1]) * (1 << (20 if found[2] == "MiB" else 30))
    stage.submit(str(job), "--wait")  # prepares the data
    run = stage.submit(str(job), "--wait")
    status = stage.wait_for_state(run, "finished", seconds=60)
    assert formula == pytest.approx(status["used"]["memory"], rel=AIM)
