"""No process of an earlier attempt runs beside the next one, whatever it ignores and however it left its parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support.ranks import ENTRY, environments
from support.scenario import alive, wait_until

from clusterctl.launcher.submission.plan import ON_NODES
from clusterctl.shared.node import leftovers
from clusterctl.shared.record.files import write_json
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import CommandTrain, Job, to_record

STUBBORN = ["sh", "-c", "trap '' TERM HUP INT USR1 USR2; while :; do sleep 0.2; done"]


@contextmanager
def started(variables: Mapping[str, str], *argv: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own that ignores what can be ignored."""
    with subprocess.Popen(
        argv or STUBBORN, env={"PATH": os.environ["PATH"], **variables}, start_new_session=True
    ) as it:
        try:
            wait_until(
                Path(f"/proc/{it.pid}/environ").read_bytes, what="its environment"
            )  # set a moment after its start
            yield it
        finally:
            with suppress(ProcessLookupError):
                os.killpg(it.pid, signal.SIGKILL)


def variables(run: RunDir, attempt: int, job: str, **more: str) -> dict[str, str]:
    marks = {"CLUSTERCTL_RUN_DIR": str(run.path), "CLUSTERCTL_ATTEMPT": str(attempt)}
    return marks | {"SLURM_JOB_ID": job, "SLURM_PROCID": "0", "SLURM_STEP_ID": "3"} | more


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    for number, job in enumerate(("12", "12", "14")):
        run.attempt(number).path.mkdir(parents=True)
        write_json(run.attempt(number).host_json, {"job_id": job})
    return run


@pytest.mark.parametrize(
    ("attempt", "job", "more", "gone"),
    [
        (0, "12", {}, True),
        (1, "12", {}, True),
        (1, "12", {"SLURM_PROCID": "7", "SLURM_STEP_ID": "0"}, True),
        (0, "99", {}, False),  # a job that the program submitted
        (1, "14", {}, False),
        (0, "12", {"CLUSTERCTL_RUN_DIR": "/elsewhere"}, False),
        (0, "12", {"SLURM_PROCID": None}, False),  # the writer of a node
        (2, "14", {}, False),
        (3, "15", {}, False),
    ],
)
def test_only_tasks_of_earlier_attempts_and_their_jobs_are_ended(
    run: RunDir, attempt: int, job: str, more: dict[str, str | None], gone: bool
) -> None:
    merged: dict[str, str | None] = {**variables(run, attempt, job), **more}
    with started({name: value for name, value in merged.items() if value is not None}) as process:
        leftovers.main(["2"], variables(run, 2, "14", SLURM_STEP_ID="0"))
        assert (process.poll() == -signal.SIGKILL) is gone


@pytest.mark.parametrize(("step", "gone"), [("3", True), ("5", False), (None, False)])
def test_after_a_failure_the_batch_script_of_the_attempt_stays(run: RunDir, step: str | None, gone: bool) -> None:
    own = variables(run, 2, "14")
    theirs = {name: value for name, value in {**own, "SLURM_STEP_ID": step}.items() if value is not None}
    with started(theirs) as process:
        leftovers.main(["3"], own | {"SLURM_STEP_ID": "5"})
        assert (process.poll() == -signal.SIGKILL) is gone


@pytest.mark.parametrize(
    ("word", "seconds", "code"),  # a program must still be there when a busy machine looks for it
    [(f"/runs/.code/1/lib/{ON_NODES}", 0.5, 5), ("clusterctl.runs", 0.5, 5), ("train.py", 60, -signal.SIGKILL)],
)
def test_a_task_gets_time_to_leave_by_itself_and_its_program_none(
    run: RunDir, word: str, seconds: float, code: int
) -> None:
    with started(variables(run, 0, "12"), "sh", "-c", f"sleep {seconds}; exit 5", word) as process:
        leftovers.main(["2"], variables(run, 2, "14", SLURM_STEP_ID="0"))
        assert process.wait() == code


def test_it_needs_no_package_and_no_record(run: RunDir) -> None:
    run.attempt(0).host_json.write_text("[broken")
    run.attempt(1).host_json.unlink()
    with started(variables(run, 0, "12")) as process:
        argv = [sys.executable, "-I", "-S", str(leftovers.__file__), "2"]
        done = subprocess.run(argv, env=variables(run, 2, "14"), capture_output=True, check=False)
        assert (done.returncode, done.stderr, process.poll()) == (0, b"", None)
        write_json(run.attempt(0).host_json, {"job_id": "12"})
        subprocess.run(argv, env=variables(run, 2, "14"), check=True)
        assert process.wait() == -signal.SIGKILL


PROGRAM = """
import json, os, signal, subprocess, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
stubborn = ["sh", "-c", "trap '' TERM HUP; while :; do sleep 0.2; done"]
child = subprocess.Popen(stubborn, start_new_session=True)
nameless = subprocess.Popen(stubborn, env={"PATH": os.environ["PATH"]})
if os.fork() == 0:  # a daemon
    os.setsid()
    if os.fork():
        os._exit(0)
    while True:
        time.sleep(0.2)
os.wait()
print(json.dumps([os.getpid(), child.pid, nameless.pid]), flush=True)
while True:
    time.sleep(0.2)
"""


@pytest.fixture
def task(tmp_path: Path) -> Iterator[tuple[RunDir, subprocess.Popen[bytes], list[int]]]:
    """A task whose program ignores TERM. It has a child in its own session, one without variables, and a daemon."""
    run = RunDir(tmp_path / "run")
    (environment,) = environments(run.attempt(0), [1])
    job = Job(name="own", workload="command", argv=("python", "-c", PROGRAM), train=CommandTrain())
    write_json(run.run_json, {"job": to_record(job)})
    argv = [sys.executable, *ENTRY, str(run.path)]
    with subprocess.Popen(argv, env=environment | {"SLURM_STEP_ID": "0"}, stdout=subprocess.PIPE) as task:
        assert task.stdout is not None
        pids = json.loads(task.stdout.readline())
        yield run, task, pids
        for pid in {*pids, *alive(run)}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        task.kill()


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_a_task_that_gets_term_leaves_nothing_of_its_program(
    task: tuple[RunDir, subprocess.Popen[bytes], list[int]],
) -> None:
    run, process, pids = task
    assert len(alive(run)) >= 4
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert all(_gone(pid) for pid in pids)
    wait_until(lambda: alive(run) == [], 10)


def test_a_program_that_ignores_term_ends_with_its_killed_task(
    task: tuple[RunDir, subprocess.Popen[bytes], list[int]],
) -> None:
    _, process, (program, *_) = task
    process.kill()
    wait_until(lambda: _gone(program), 10)
