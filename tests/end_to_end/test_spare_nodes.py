"""`resources.spare_nodes`: a node that is lost, or fails its check, is replaced inside the job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.ranks import CORA, run_job
from support.scenario import Stage, wait_until

from clusterctl.shared.record.files import read_json, read_lines
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Data, Job, RedditTrain

TRAINING = f"""
workload = "reddit"
resources.nodes = 2
resources.spare_nodes = 1
checkpoint.every = "1s"
train.epochs = 25
train.batch_size = 128
train.evaluate_every = 5
data.root = {json.dumps(str(CORA))}
"""
CHECKED = """
workload = "command"
argv = ["python", "-c", "import os; print(os.environ['SLURMD_NODENAME'], os.environ['SLURM_JOB_NODELIST'])"]
resources.nodes = 2
resources.spare_nodes = 1
node_check.enabled = true
node_check.seconds = 60
node_check.scratch = "1M"
node_check.shared_memory = "1M"
"""


def host(run: RunDir, attempt: int) -> dict[str, Any]:
    return dict(read_json(run.attempt(attempt).host_json))


def losses_of(run: RunDir) -> dict[int, float]:
    """Step -> loss; a later attempt replaces the steps that an earlier one took after its last checkpoint."""
    found: dict[int, float] = {}
    for attempt in run.attempts():
        found |= {line["step"]: line["loss"] for line in read_lines(attempt.metrics) if "loss" in line}
    return found


def assert_undisturbed(run: RunDir, folder: Path) -> None:
    """The losses and weights are those of the same training on two ranks that nothing happens to."""
    calm = RunDir(folder / "calm" / "run-20260101-000000-aaaa")
    train = RedditTrain(epochs=25, batch_size=128, evaluate_every=5, device="cpu")
    run_job(Job(name="calm", workload="reddit", data=Data(root=str(CORA)), train=train), calm, [1, 1])
    assert losses_of(run) == losses_of(calm)
    ours, theirs = torch.load(run.weights), torch.load(calm.weights)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def wait_for_checkpoint(run: RunDir) -> None:
    wait_until(lambda: list(run.checkpoints.glob("0-*")), 90, "a checkpoint")


@pytest.mark.parametrize("back_end", ["emulator"], indirect=True)
def test_a_node_that_fails_its_check_is_replaced_before_the_ranks_start(stage: Stage, tmp_path: Path) -> None:
    for number in (1, 3, 4):
        (tmp_path / "scratch" / f"node{number}").mkdir(parents=True)
    (stage.folder / "cluster").mkdir()
    scratch = json.dumps(f"{tmp_path}/scratch/$SLURMD_NODENAME")
    (stage.folder / "cluster" / "checked.toml").write_text(f'kind = "emulator"\nlocal_scratch = {scratch}\n')
    done = stage.call("submit", stage.write_job("checked", CHECKED), "--cluster", "checked", "--wait")
    assert done.returncode == 0, done.stderr
    run = RunDir(stage.runs / done.stdout.strip())
    assert len(run.attempts()) == 1
    assert [stage.log(run, rank).split()[-2:] for rank in (0, 1)] == [
        ["node1", "node1,node3"],
        ["node3", "node1,node3"],
    ]
    record = host(run, 0)
    assert (record["nodes"], record["spares"], record["exit_code"]) == ("node1,node3", "", 0)
    assert record["left_out"] == [{"node": "node2", "why": "check", "by": "node3"}]


@pytest.mark.parametrize("back_end", ["emulator"], indirect=True)
def test_a_node_that_slurm_loses_is_replaced_in_the_same_job(stage: Stage, tmp_path: Path) -> None:
    run = stage.submit(stage.write_job("down", TRAINING))
    wait_for_checkpoint(run)
    stage.slurm("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=off")
    stage.wait_for_stage(run, "finished", seconds=120)
    first, second = host(run, 0), host(run, 1)
    assert (first["restarting"], first["nodes"], second["nodes"]) == (True, "node1,node2", "node1,node3")
    assert second["left_out"] == [{"node": "node2", "why": "down", "by": "node3"}]
    assert (second["restart_count"], second["job_id"]) == (0, first["job_id"])
    assert_undisturbed(run, tmp_path)
