"""What only a real Slurm can do to a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sandbox_fixture import RunningSandbox
from scenario import CLUSTERCTL, Stage, wait_until

from clusterctl.runs.layout import RunDir

ENDLESS = 'workload = "command"\nargv = ["python", "-c", "import time; time.sleep(600)"]\n[resources]\nnodes = 2\n'


@pytest.fixture
def stage(sandbox: RunningSandbox, tmp_path: Path) -> Stage:
    environment = sandbox.environment | {"CLUSTERCTL_RUNS": str(tmp_path / "runs")}
    (tmp_path / "project").mkdir()
    return Stage(sandbox.cluster, tmp_path / "project", environment)


def test_a_run_that_is_requeued_by_hand_has_a_second_attempt_with_its_own_logs(
    sandbox: RunningSandbox, stage: Stage
) -> None:
    run = stage.submit(stage.write_job("endless", ENDLESS))
    wait_until(lambda: len(run.attempt(0).log_files("out")) == 2, 30, "the first attempt")
    sandbox.call("scontrol", "requeue", stage.status(run)["job_id"])
    wait_until(lambda: len(run.attempt(1).log_files("out")) == 2, 30, "the second attempt")
    hosts = [json.loads(attempt.host_json.read_text()) for attempt in run.attempts()]
    assert [host["restart_count"] for host in hosts] == [0, 1]
    assert (hosts[0]["exit_code"], hosts[0]["signal"]) == (143, "TERM")
    assert stage.call("cancel", run.id, "--cluster", stage.cluster).returncode == 0
    stage.wait_for_stage(run, "cancelled", seconds=20)


def test_a_run_can_be_submitted_from_inside_an_allocation(sandbox: RunningSandbox, stage: Stage) -> None:
    job = stage.write_job("short", ENDLESS.replace("time.sleep(600)", "pass"))
    words = [CLUSTERCTL, "submit", str(stage.folder / job), "--cluster", stage.cluster, "--wait"]
    settings = [f"{name}={stage.environment[name]}" for name in ("CLUSTERCTL_RUNS", "XDG_STATE_HOME")]
    said = sandbox.call("salloc", "--quiet", "--nodes=1", "--ntasks=3", "env", *settings, *words)
    assert stage.status(RunDir(stage.runs / said.strip()))["stage"] == "finished"


def test_a_controller_that_does_not_answer_loses_no_run(sandbox: RunningSandbox, stage: Stage) -> None:
    job = stage.write_job("short", ENDLESS.replace("time.sleep(600)", "pass"))
    with sandbox.paused("slurmctld"):
        done = stage.call("submit", job, "--cluster", stage.cluster)
    assert (done.returncode, "sbatch got no answer in time" in done.stderr) == (4, True)
    (run,) = (RunDir(path) for path in stage.runs.glob("short-*"))
    stage.wait_for_stage(run, "finished", seconds=30)
