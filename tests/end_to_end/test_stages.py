"""A job file with stages, from one command to the last stage's end, on every back end."""

from __future__ import annotations

import json

import pytest
from support.scenario import ON_SLURM_AND_FAR, Stage

from clusterctl.shared.record.layout import RunDir

PIPELINE = """
workload = "command"
argv = ["python", "-c", "import os; raise SystemExit(int(os.environ.get('FAIL', '0')))"]
[resources]
nodes = 1
[[stage]]
name = "prepare"
[[stage]]
name = "train"
env.FAIL = "3"
[[stage]]
name = "evaluate"
"""


@pytest.mark.long
@ON_SLURM_AND_FAR
def test_resuming_a_failed_stage_resumes_the_later_ones(stage: Stage) -> None:
    job = stage.write_job("pipeline", PIPELINE)
    done = stage.call("submit", job, "--cluster", stage.cluster, "-o", "json")
    assert done.returncode == 0, done.stderr
    submitted = [json.loads(line) for line in done.stdout.splitlines()]
    prepare, train, evaluate = (RunDir(stage.runs / one["id"]) for one in submitted)
    assert [run.id.rsplit("-", 3)[0] for run in (prepare, train, evaluate)] == [
        *("pipeline-prepare", "pipeline-train", "pipeline-evaluate")
    ]
    stage.wait_for_state(train, "failed")
    stage.wait_for_state(evaluate, "cancelled")
    again = stage.call("resume", train.id, "--cluster", stage.cluster, "--set", "env.FAIL=0")
    assert again.returncode == 0, again.stderr
    assert again.stdout.split() == [train.id, evaluate.id]
    stage.wait_for_state(evaluate, "finished")
    assert [len(run.attempts()) for run in (prepare, train, evaluate)] == [1, 2, 1]
