"""Runs on clusters that do not requeue jobs go on in other jobs, which wait for the end of the first."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from support.scenario import NamedJobs, Stage, alive, wait_until

from clusterctl.shared.record.files import read_json
from clusterctl.shared.record.layout import RunDir

# Counts to 400 and saves each number; it knows nothing of clusterctl.
PROGRAM = """
import os, pathlib, time
saved = pathlib.Path("count")
count = int(saved.read_text()) if saved.exists() else 0
print("going on from", count, flush=True)
while count < 400:
    count += 1
    pathlib.Path("aside").write_text(str(count)); os.replace("aside", saved)
    time.sleep(float(os.environ["PACE"]))
print("counted to", count)
"""
JOB = f"""
workload = "command"
argv = ["python", "-c", {json.dumps(PROGRAM)}]
[restart]
where = "queue"
by = "successor"
progress = "count"
at_limit = true
[env]
PACE = "%s"
[resources]
nodes = 1
time = "%s"
"""


def submit(stage: Stage, *words: str, pace: str = "0.02", limit: str = "10m", name: str = "count") -> RunDir:
    return stage.submit(stage.write_job(name, JOB % (pace, limit)), *words)


def kill(run: RunDir) -> None:
    """Once it has saved, and its successor is queued."""
    wait_until(lambda: (run.work / "count").exists() and run.successor_json.exists(), 90, "its successor")
    *_, victim = [pid for pid in alive(run) if b"pathlib.Path(" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(victim, signal.SIGKILL)


def jobs_of(run: RunDir) -> list[str]:
    """The job of each attempt."""
    return [str(read_json(attempt.host_json)["job_id"]) for attempt in run.attempts()]


def queued(stage: Stage) -> list[str]:
    return stage.slurm("squeue", "--me", "--noheader", "--format=%i").split()


@pytest.mark.long
def test_a_killed_program_goes_on_in_a_second_job_which_others_wait_for(stage: Stage, queue: NamedJobs) -> None:
    """Also a job that was queued, for the first one, after the second."""
    run = submit(stage, pace="0.05")
    dependent = stage.submit(
        stage.write_job("next", 'workload = "command"\nargv = ["true"]\n[resources]\nnodes = 1\n'), "--after", run.id
    )
    wait_until(run.successor_json.exists, 60, "its successor")
    by_hand = ("--kill-on-invalid-dep=yes", f"--dependency=afterok:{stage.job_id(run)}")
    queue.submit("late", "touch late", *by_hand)
    kill(run)
    status = stage.wait_for_state(run, "finished", seconds=120)
    first, second = jobs_of(run)
    assert first == stage.job_id(run) != second
    assert (status["job_id"], status["attempts"]) == (second, 2)
    for job in (first, second):
        assert json.loads(stage.call("why", job, "--cluster", stage.cluster, "-o", "json").stdout)["id"] == run.id
    assert "counted to 400" in stage.log(run, 0, attempt=1)
    assert "going on from 0" not in stage.log(run, 0, attempt=1)
    stage.wait_for_state(dependent, "finished", seconds=60)
    assert read_json(dependent.attempt(0).host_json)["start"] >= read_json(run.finished_json)["time"]
    wait_until((stage.folder / "late").exists, 60, "the job that was queued late")
    wait_until(lambda: not queued(stage), 30, "no job to be left in the queue")


@pytest.mark.parametrize("when", ["running", pytest.param("between", marks=pytest.mark.long)])
def test_cancel_ends_both_jobs(stage: Stage, when: str) -> None:
    run = submit(stage, pace="0.2")
    wait_until(run.successor_json.exists, 60, "its successor")
    if when == "between":
        stage.slurm("scontrol", "hold", str(read_json(run.successor_json)["job_id"]))
        kill(run)
        assert stage.wait_for_state(run, "queued")["job_id"] == read_json(run.successor_json)["job_id"]
    assert stage.call("cancel", "--yes", run.id, "--cluster", stage.cluster).returncode == 0
    stage.wait_for_state(run, "cancelled")
    wait_until(lambda: not queued(stage), 60, "no job to be left in the queue")
    assert len(run.attempts()) == 1


@pytest.mark.long
def test_what_waits_for_a_run_that_its_time_limit_ends_does_not_start(stage: Stage) -> None:
    """Its successor, to which that was moved, is not needed."""
    text = (JOB % ("1", "20s")).replace("at_limit = true\n", "")  # Slurm's limits are whole minutes
    run = stage.submit(stage.write_job("count", text), "--set", "resources.warning=0")
    after = stage.submit(
        stage.write_job("next", 'workload = "command"\nargv = ["true"]\n[resources]\nnodes = 1\n'), "--after", run.id
    )
    wait_until(lambda: (run.work / "count").exists() and run.successor_json.exists(), 90, "its successor")
    stage.wait_for_state(run, "timed-out", seconds=180)
    stage.wait_for_state(after, "cancelled", seconds=60)
    assert after.attempts() == []
    wait_until(lambda: not queued(stage), 30, "no job to be left in the queue")


@pytest.mark.long
def test_jobs_that_may_queue_none_go_on_in_those_that_the_submission_has_queued(stage: Stage) -> None:
    """Through two of them, while another run waits for the last one."""
    kind, name = ("emulator", "emulated") if stage.cluster == "local" else ("sandbox", "strict")
    (stage.folder / "cluster").mkdir(exist_ok=True)
    (stage.folder / "cluster" / f"{name}.toml").write_text(f'kind = "{kind}"\nsuccessors = 2\npolling_floor = "1s"\n')
    stage.cluster = name
    text = (JOB % ("0.05", "10m")).replace('by = "successor"\n', "")
    run = stage.submit(stage.write_job("count", text))
    after = stage.submit(
        stage.write_job("next", 'workload = "command"\nargv = ["true"]\n[resources]\nnodes = 1\n'),
        *("--after", run.id, "--set", "restart.limit=0"),
    )
    first, second, third = read_json(run.successor_json)["jobs"].split()
    assert sorted(queued(stage)) == sorted([first, second, third, stage.job_id(after)])
    kill(run)
    counted = int((run.work / "count").read_text())
    wait_until(lambda: int((run.work / "count").read_text()) > counted + 5, 60, "progress of the second job")
    assert stage.status(run)["job_id"] == second
    kill(run)
    stage.wait_for_state(run, "finished", seconds=120)
    assert jobs_of(run) == [first, second, third]
    stage.wait_for_state(after, "finished", seconds=60)
    wait_until(lambda: not queued(stage), 30, "no job to be left in the queue")
    stopped = stage.submit(stage.write_job("stopped", text))
    wait_until(lambda: bool(stopped.attempts()), 60, "the first job")
    assert stage.call("cancel", "--yes", stopped.id, "--cluster", stage.cluster).returncode == 0
    stage.wait_for_state(stopped, "cancelled")
    wait_until(lambda: not queued(stage), 60, "no job to be left in the queue")


@pytest.mark.parametrize("back_end", ["sandbox"], indirect=True)  # the emulator changes no queued jobs
def test_a_job_that_the_site_does_not_requeue_has_a_successor_by_itself(stage: Stage) -> None:
    """As a submit plugin of the site may do it, which says nothing."""
    text = (JOB % ("0.02", "10m")).replace('by = "successor"\n', "")
    run = stage.submit(stage.write_job("count", text), "--hold")
    stage.slurm("scontrol", "update", f"JobId={stage.job_id(run)}", "Requeue=0")
    stage.slurm("scontrol", "release", stage.job_id(run))
    kill(run)
    stage.wait_for_state(run, "finished", seconds=120)
    assert len(set(jobs_of(run))) == 2


@pytest.mark.long
@pytest.mark.parametrize("starts", [3, pytest.param(12, marks=pytest.mark.faults)])
def test_a_program_runs_through_many_jobs_of_a_minute(stage: Stage, starts: int) -> None:
    """Unattended: each job is warned a quarter of its minute before its end, and the next one goes on."""
    run = submit(stage, pace=str(starts * 50 / 400), limit="1m")  # a job has 45 to 50 s: a warning may be late
    deadline = time.monotonic() + 120 * starts
    while not run.finished_json.exists() and time.monotonic() < deadline:
        time.sleep(2)
    stage.wait_for_state(run, "finished")
    assert len(set(jobs_of(run))) >= starts
    starts_at = [int(stage.log(run, 0, attempt=one.number).split()[3]) for one in run.attempts()]
    assert starts_at == sorted(set(starts_at))
    wait_until(lambda: not queued(stage), 30, "no job to be left in the queue")
