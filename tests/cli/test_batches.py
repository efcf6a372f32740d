"""What `submit` prints about the batches of a training."""

from __future__ import annotations

import json

import pytest
from support.mistake import Desk
from support.ranks import CORA

JOB = f"""\
workload = "reddit"
[resources]
nodes = 8
tasks_per_node = 2
[data]
root = {json.dumps(str(CORA))}
"""
LINE = "global batch 2,048 (16 ranks x 128); 1 step per epoch of 1,624 nodes"
WARNING = (
    "warning: the global batch of 2,048 (16 ranks x 128) exceeds the training set of 1,624 nodes: "
    "each epoch is a single step\nhint: set train.global_batch_size instead of train.batch_size: "
    "it stays the same for any number of ranks"
)


@pytest.mark.parametrize("dry", ["--dry-run", "--dry-run=slurm", ""])
def test_submit_prints_the_global_batch_and_the_steps_and_warns_once(desk: Desk, dry: str) -> None:
    desk.use_slurm(sbatch="echo Submitted batch job 7")
    desk.write("job.toml", f"{JOB}[train]\nbatch_size = 128\n")
    code, out, err = desk.type(f"submit ./job.toml {dry}", batches=True)
    assert code == 0
    assert "global batch" not in out
    assert LINE in err.splitlines()
    assert err.count(WARNING) == 1


def test_a_global_batch_size_causes_no_warning(desk: Desk) -> None:
    desk.use_slurm()
    desk.write("job.toml", f"{JOB}[train]\nglobal_batch_size = 500\n")
    code, _, err = desk.type("submit ./job.toml --dry-run", batches=True)
    first, second = err.splitlines()
    assert (code, first) == (0, "global batch 500 (16 ranks x 31 or 32); 4 steps per epoch of 1,624 nodes")
    assert second.startswith("memory: about ")
