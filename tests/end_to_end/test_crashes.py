"""clusterctl killed at every point of `submit`: no job is lost, none is submitted twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from support.scenario import ON_SLURM, Stage

from clusterctl.shared.record.layout import RunDir

JOB = 'workload = "command"\nargv = ["python", "-c", "print(\'ran\')"]\n'

# Kills its own process when `submit` reaches the named function: before its work, or after it.
KILLED = """
import os, signal, sys
from clusterctl.launcher.api.submitting import submission, submit
name, when = sys.argv[1:3]
module = submission if hasattr(submission, name) else submit
work = getattr(module, name)
def killed(*args, **kwargs):
    if when == "after":
        work(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(module, name, killed)
from clusterctl.launcher.cli import run
run(["submit", *sys.argv[3:]])
"""
BEFORE_SBATCH = ["take_snapshot", "make_plan", "from_project", "write_run"]


def killed_at(stage: Stage, name: str, when: str) -> list[RunDir]:
    argv = [sys.executable, "-c", KILLED, name, when, stage.write_job("crash", JOB), "--cluster", stage.cluster]
    done = subprocess.run(argv, cwd=stage.folder, env=stage.environment, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return [RunDir(path) for path in stage.runs.glob("crash-*")]


# Before sbatch nothing has reached the back end, so one back end is enough in `make test`.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) for name in BEFORE_SBATCH[:-1]] + BEFORE_SBATCH[-1:]
)
def test_a_submit_killed_before_sbatch_leaves_no_job_behind(stage: Stage, name: str) -> None:
    killed_at(stage, name, "before")
    assert stage.call("status", "--cluster", stage.cluster).returncode == 0
    run = stage.submit("./crash.toml", "--wait")
    shown = stage.call("status", "--cluster", stage.cluster, "-a", "-o", "json")
    ran = [r["id"] for r in json.loads(shown.stdout)["runs"] if r["stage"] == "finished"]
    assert ran == [run.id]


@ON_SLURM
@pytest.mark.parametrize(
    ("name", "when"), [("call_sbatch", "after"), pytest.param("adopt", "before", marks=pytest.mark.long)]
)
def test_a_submit_killed_after_sbatch_is_adopted_by_the_next_command(stage: Stage, name: str, when: str) -> None:
    (run,) = killed_at(stage, name, when)
    assert not run.submission_json.exists()
    status = stage.wait_for_state(run, "finished")
    assert status["job_id"]
    assert stage.log(run, 0).splitlines()[-1] == "ran"
    assert len(run.attempts()) == 1


@pytest.mark.long
def test_a_held_job_of_a_killed_submit_is_adopted_and_can_be_cancelled(stage: Stage) -> None:
    argv = [sys.executable, "-c", KILLED, "adopt", "before", stage.write_job("crash", JOB), "--hold"]
    subprocess.run([*argv, "--cluster", stage.cluster], cwd=stage.folder, env=stage.environment, check=False)
    (run,) = [RunDir(path) for path in stage.runs.glob("crash-*")]
    assert stage.status(run)["stage"] == "queued"
    assert run.submission_json.exists()
    assert stage.call("cancel", run.id, "--cluster", stage.cluster).returncode == 0
    stage.wait_for_state(run, "cancelled", seconds=20)
