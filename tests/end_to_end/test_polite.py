"""How often the controller is queried, as counted by the controller itself (sdiag)."""

from __future__ import annotations

import json
import re
import subprocess
import time

import pytest
from support.sandbox_fixture import RunningSandbox
from support.scenario import CLUSTERCTL, Stage, wait_until

from clusterctl.shared.record.layout import RunDir

# Each squeue sends one of these; it also queries the partitions, with any options (22.05).
_SQUEUE = re.compile(r"^\s*REQUEST_JOB(?:_USER)?_INFO\s.*?count:(\d+)", re.MULTILINE)


@pytest.fixture
def back_end(sandbox: RunningSandbox) -> str:
    return sandbox.cluster


def queries_so_far(sandbox: RunningSandbox) -> int:
    return sum(
        map(int, _SQUEUE.findall(sandbox.call("sdiag").partition("Remote Procedure Call statistics by user")[0]))
    )


def add_runs(stage: Stage, run: RunDir, sandbox: RunningSandbox, count: int) -> None:
    """Add runs like `run`, each with its own held job."""
    record = json.loads(run.run_json.read_text())
    for number in range(count):
        other = RunDir(run.path.with_name(f"held-20260101-{number:06}-{number:04x}"))
        other.path.mkdir()
        other.run_json.write_text(json.dumps({**record, "id": other.id}))
        job = sandbox.call("sbatch", "--parsable", "--hold", "--job-name=held", "--wrap=true").strip()
        other.submission_json.write_text(json.dumps({"job_id": job, "time": 1.0}))


def count_queries(stage: Stage, sandbox: RunningSandbox, viewers: int, seconds: float) -> int:
    """Queries from `viewers` watching all runs during `seconds`, once each of them shows the table."""
    argv = [CLUSTERCTL, "status", "-a", "--watch", "-o", "jsonl", "--cluster", "slow"]
    shown = [stage.folder / f"shown-{number}" for number in range(viewers)]
    begun = []
    for path in shown:
        with path.open("wb") as file:  # a full pipe would block them
            begun.append(subprocess.Popen(argv, cwd=stage.folder, env=stage.environment, stdout=file))
    try:
        wait_until(lambda: all(path.stat().st_size for path in shown), what="every viewer to show something")
        before = queries_so_far(sandbox)
        time.sleep(seconds)  # this measures a rate
        return queries_so_far(sandbox) - before
    finally:
        for viewer in begun:
            viewer.kill()
            viewer.wait()


def slow_cluster(stage: Stage, floor: str) -> None:
    (stage.folder / "cluster").mkdir()
    (stage.folder / "cluster" / "slow.toml").write_text(f'kind = "sandbox"\npolling_floor = "{floor}"\n')


def submitted(stage: Stage) -> RunDir:
    return stage.submit(stage.write_job("held", 'workload = "command"\nargv = ["true"]\n'), "--hold")


@pytest.mark.long
def test_three_viewers_of_twenty_runs_query_slurm_as_often_as_one_viewer_of_one(
    stage: Stage, sandbox: RunningSandbox
) -> None:
    """Like the test below, with a polling floor of two seconds instead of ten."""
    slow_cluster(stage, "2s")
    stage.cluster = "slow"
    run = submitted(stage)
    try:
        assert 2 <= count_queries(stage, sandbox, viewers=1, seconds=6) <= 4
        add_runs(stage, run, sandbox, 19)
        assert 2 <= count_queries(stage, sandbox, viewers=3, seconds=6) <= 4
    finally:
        sandbox.call("scancel", "--me", "--name=held")


@pytest.mark.long
def test_ten_viewers_of_a_hundred_runs_query_slurm_at_most_seven_times_a_minute(
    stage: Stage, sandbox: RunningSandbox
) -> None:
    slow_cluster(stage, "10s")
    stage.cluster = "slow"
    run = submitted(stage)
    try:
        assert 5 <= count_queries(stage, sandbox, viewers=1, seconds=60) <= 7
        add_runs(stage, run, sandbox, 99)
        assert 5 <= count_queries(stage, sandbox, viewers=10, seconds=60) <= 7
    finally:
        sandbox.call("scancel", "--me", "--name=held")


@pytest.mark.long
def test_a_cancelled_run_is_shown_immediately_despite_the_polling_floor(stage: Stage) -> None:
    slow_cluster(stage, "10m")
    stage.cluster = "slow"
    run = submitted(stage)
    assert stage.status(run)["stage"] == "queued"
    assert stage.call("cancel", run.id, "--cluster", "slow").returncode == 0
    stage.wait_for_state(run, "cancelled", seconds=20)
    again = submitted(stage)
    assert (stage.status(again)["stage"], stage.status(again)["sure"]) == ("queued", True)
    stage.call("cancel", again.id, "--cluster", "slow")
