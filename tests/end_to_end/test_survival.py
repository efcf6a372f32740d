"""Runs that are interrupted from outside, and end as if they had not been."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from scenario import Stage, wait_until

from clusterctl.runs.files import read_json, read_lines
from clusterctl.runs.layout import RunDir

CORA = Path(__file__).resolve().parents[2] / "data" / "cora"
JOB = f"""
workload = "reddit"
[resources]
nodes = 2
tasks_per_node = 2
time = "30m"
[train]
epochs = 25
batch_size = 64
evaluate_every = 5
[data]
root = {json.dumps(str(CORA))}
"""


def steps_of(run: RunDir, attempt: int = 0) -> dict[int, float]:
    """Step -> loss, as an attempt wrote them."""
    return {line["step"]: line["loss"] for line in read_lines(run.attempt(attempt).metrics) if "loss" in line}


def wait_for_step(run: RunDir, step: int, attempt: int = 0) -> None:
    wait_until(lambda: len(steps_of(run, attempt)) >= step, 90, f"step {step} of attempt {attempt}")


@pytest.fixture
def undisturbed(stage: Stage) -> RunDir:
    return stage.submit(stage.write_job("calm", JOB), "--wait")


def test_a_warned_run_saves_goes_back_to_the_queue_and_ends_with_the_same_weights(
    stage: Stage, undisturbed: RunDir
) -> None:
    run = stage.submit(stage.write_job("warned", JOB))
    wait_for_step(run, 12)
    stage.slurm("scancel", "--signal=USR2", stage.job_id(run))
    stage.wait_for_stage(run, "finished", seconds=120)
    hosts = [read_json(attempt.host_json) for attempt in run.attempts()]
    assert [(host["exit_code"], host.get("requeued", False), host["restart_count"]) for host in hosts] == [
        (75, True, 0),
        (0, False, 1),
    ]
    assert read_json(run.requeue_json)["attempt"] == 0
    assert stage.status(run)["attempts"] == 2
    first, second = steps_of(run, 0), steps_of(run, 1)
    assert max(first) + 1 == min(second)
    assert first | second == steps_of(undisturbed)
    ours, theirs = torch.load(run.weights), torch.load(undisturbed.weights)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
