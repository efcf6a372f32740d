"""How `clusterctl why` diagnoses faults: the class, the rank, and how soon.

Some faults run once here in `make test`; all run on both back ends in the long suite.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from support.recorded import beat_of, begun, recorded
from support.scenario import Stage, alive, wait_until

from clusterctl.shared.record.files import read_json
from clusterctl.shared.record.layout import RunDir

CORA = Path(__file__).resolve().parents[2] / "data" / "cora"
SHAPE = "[resources]\nnodes = 2\ntasks_per_node = 2\n"


@pytest.fixture(params=["emulator", pytest.param("sandbox", marks=pytest.mark.long)])
def back_end(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def command(program: str, more: str = "") -> str:
    return f'workload = "command"\nargv = ["python", "-c", {json.dumps(program)}]\n{SHAPE}{more}'


def why(stage: Stage, run: RunDir) -> dict[str, Any]:
    done = stage.call("why", run.id, "--cluster", stage.cluster, "-o", "json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


SLEEP_OR = """
import os, sys, time
if os.environ["RANK"] == "2":
    {}
time.sleep(600)
"""


def test_an_exception_in_one_rank_is_the_cause_and_the_other_ranks_are_secondary(stage: Stage) -> None:
    program = SLEEP_OR.format('raise ValueError("no such layer: 7")')
    done = stage.call("submit", stage.write_job("raising", command(program)), "--cluster", stage.cluster, "--wait")
    run = RunDir(stage.runs / done.stdout.strip())
    assert "ValueError: no such layer: 7" in done.stderr
    assert f"hint: clusterctl why {run.id}" in done.stderr
    found = why(stage, run)
    assert (found["class"], found["rank"], found["attempt"], found["certainty"]) == ("user-error", 2, 0, "certain")
    assert found["cause"] == "ValueError: no such layer: 7"
    assert 'File "<string>", line 4' in found["traceback"]
    assert {consequence["rank"] for consequence in found["secondary"]} <= {0, 1, 3}
    assert f"clusterctl logs {run.id} --rank 2" in found["commands"]
    shown = stage.call("why", run.id, "--cluster", stage.cluster)
    assert "rank 2" in shown.stdout
    status = stage.call("status", run.id, "--cluster", stage.cluster)
    assert f"next: clusterctl why {run.id}" in status.stderr


@pytest.mark.long
def test_a_missing_module_is_a_user_error(stage: Stage) -> None:
    run = stage.submit(stage.write_job("importing", command("import no_such_module")))
    stage.wait_for_state(run, "failed")
    found = why(stage, run)
    assert found["class"] == "user-error"
    assert found["cause"] == "ModuleNotFoundError: No module named 'no_such_module'"


@pytest.mark.long
def test_a_killed_rank_is_found_within_ten_seconds_although_it_logged_nothing(stage: Stage) -> None:
    run = stage.submit(stage.write_job("killed", command(SLEEP_OR.format("pass"), "[restart]\nlimit = 0\n")))
    wait_until(lambda: len(begun(run.attempt(0))) == 4 and len(alive(run, rank=2)) == 2)
    wrapper = alive(run, rank=2)[0]
    os.kill(wrapper, signal.SIGKILL)
    killed = time.monotonic()
    stage.wait_for_state(run, "failed", seconds=30)
    found = why(stage, run)
    assert time.monotonic() - killed < 20  # 10 s, and this machine may be busy
    assert (found["class"], found["rank"], found["certainty"]) == ("killed", 2, "certain")
    assert found["node"]


@pytest.mark.long
def test_the_watchdog_names_a_stopped_rank_and_ends_the_attempt(stage: Stage) -> None:
    """The rank cannot watch itself, and the others hang in a collective meanwhile."""
    job = f'workload = "reddit"\n{SHAPE}[train]\nepochs = 100000\nbatch_size = 128\nevaluate_every = 0\n'
    job += f'[data]\nroot = {json.dumps(str(CORA))}\n[watchdog]\nfloor = 4\nfactor = 5\naction = "fail"\n'
    run = stage.submit(stage.write_job("stopped", job))
    wait_until(
        lambda: all((beat := beat_of(run.attempt(0), rank)) is not None and beat.slow_seconds for rank in range(4)),
        90,
    )
    healthy = why(stage, run)
    assert (healthy["run_stage"], healthy["attempt"]) == ("training", 0)
    assert healthy["class"] in ("healthy", "straggler")
    (victim,) = alive(run, rank=2)
    os.kill(victim, signal.SIGSTOP)
    stage.wait_for_state(run, "failed", seconds=60)
    found = why(stage, run)
    assert (found["class"], found["rank"], found["certainty"]) == ("hang", 2, "certain")
    assert found["stage"] == "training"
    assert found["step"] > 0
    assert "stopped writing heartbeats" in found["cause"]
    alarm = read_json(run.attempt(0).hang_json)
    assert alarm["suspects"] == [2]
    (stacks,) = (event["stacks"] for event in recorded(run.attempt(0), 0) if event["event"] == "hang")
    assert "all_reduce" in stacks.split("\n\nThread ")[0]
    assert not run.requeue_json.exists()
    assert alive(run) == []


STUCK = """
import ctypes, os, time, clusterctl.program
def stuck():
    ctypes.PyDLL(None).sleep(600)
for step in range(1, 100000):
    if os.environ["RANK"] == "2" and step == 40:
        stuck()
    time.sleep(0.05)
    clusterctl.program.log(step=step, loss=0.5)
"""


@pytest.mark.long
def test_native_code_that_holds_the_gil_is_located_and_a_restart_is_requested(
    stage: Stage,
) -> None:
    """No Python code runs any more, not even the heartbeat thread: the stacks come from a signal handler in C."""
    run = stage.submit(
        stage.write_job("stuck", command(STUCK, "[watchdog]\nfloor = 4\nfactor = 5\n[restart]\nlimit = 0\n"))
    )
    wait_until(lambda: run.attempt(0).hang_json.exists(), 60)
    wait_until(lambda: run.requeue_json.exists(), 30)
    request = read_json(run.requeue_json)
    assert (request["attempt"], request["reason"]) == (0, "hang")
    stage.wait_for_state(run, "failed")
    found = why(stage, run)
    assert (found["class"], found["rank"]) == ("hang", 2)
    assert "in stuck" in found["traceback"]


DEADLOCK = """
import os
from contextlib import suppress
rank = os.environ["RANK"]
for name in "01":
    with suppress(FileExistsError):
        os.mkfifo(name)
print("meeting", flush=True)
if rank == "1" and os.environ["CLUSTERCTL_ATTEMPT"] == "1":
    open("0", "w")
    open("1")
else:  # each waits for the other to begin
    open(rank)
    open("10"[int(rank)], "w")
"""


def deadlocked(stage: Stage, action: str) -> RunDir:
    watchdog = f'[watchdog]\nidle = "5s"\n{action}'
    job = command(DEADLOCK, watchdog).replace("tasks_per_node = 2", "tasks_per_node = 1")
    return stage.submit(stage.write_job("deadlocked", job))


@pytest.mark.long
def test_a_deadlock_without_logged_steps_is_restarted_if_the_job_asks_for_it(
    stage: Stage,
) -> None:
    run = deadlocked(stage, 'action = "restart"\n')
    stage.wait_for_state(run, "finished", seconds=180)
    request, alarm = read_json(run.requeue_json), read_json(run.attempt(0).hang_json)
    assert (request["attempt"], request["reason"]) == (0, "hang")
    assert (alarm["how"], alarm["suspects"]) == ("idle", [])
    (before,) = why(stage, run)["history"]
    assert (before["attempt"], before["class"]) == (0, "hang")
    for rank in (0, 1):
        (event,) = (event for event in recorded(run.attempt(0), rank) if event["event"] == "hang")
        assert "main thread sleeping" in event["stacks"]


@pytest.mark.long
@pytest.mark.parametrize("back_end", ["emulator"], indirect=True)
def test_by_default_such_a_deadlock_is_only_reported(stage: Stage) -> None:
    run = deadlocked(stage, "")
    wait_until(run.attempt(0).hang_report_json.exists, 120)
    wait_until(lambda: "main thread" in (why(stage, run)["traceback"] or ""), 30, every=0.4)
    found = why(stage, run)
    assert (found["run_stage"], found["class"], found["rank"]) == ("training", "hang", None)
    assert found["cause"].startswith("logs no steps and has been idle since ")
    assert all(len(alive(run, rank=rank)) >= 2 for rank in (0, 1))
    assert not run.attempt(0).hang_json.exists()


FILL = """
import os, sys, time
if os.environ["RANK"] == "2":
    time.sleep(1)
    with open(os.path.join(os.environ["CLUSTERCTL_RUN_DIR"], "ballast"), "wb", buffering=0) as file:
        while True: file.write(bytes(4096))
time.sleep(600)
"""


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
@pytest.mark.parametrize("back_end", ["emulator"], indirect=True)
def test_a_full_disk_is_the_cause_although_no_rank_could_record_it(stage: Stage) -> None:
    stage.runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", stage.runs], check=True)
    try:
        run = stage.submit(stage.write_job("full", command(FILL)))
        stage.wait_for_state(run, "failed")
        assert why(stage, run)["class"] == "disk-full"
        assert stage.call("cancel", "--yes", run.id, "--cluster", stage.cluster).returncode == 0
    finally:
        subprocess.run(["umount", "--lazy", stage.runs], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
@pytest.mark.parametrize("back_end", ["emulator"], indirect=True)
def test_a_full_disk_keeps_no_run_from_being_cancelled(stage: Stage) -> None:
    stage.runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", stage.runs], check=True)
    try:
        run = stage.submit(stage.write_job("full", command(SLEEPING)))
        wait_until(lambda: alive(run))
        subprocess.run(["dd", "if=/dev/zero", f"of={stage.runs}/.ballast", "bs=1M"], capture_output=True, check=False)
        done = stage.call("cancel", "--yes", run.id, "--cluster", stage.cluster)
        assert done.returncode == 0, done.stderr
        wait_until(lambda: not alive(run))
        (stage.runs / ".ballast").unlink()
        stage.wait_for_state(run, "cancelled")
    finally:
        subprocess.run(["umount", "--lazy", stage.runs], check=True)


SLEEPING = "import time; time.sleep(600)"
STEADY = """
import os, time
import clusterctl.program as program
for step in range(30):
    program.log(step=step, loss=1.0)
    time.sleep(0.1)
"""


@pytest.mark.long  # its script tries for half a minute to record its end
@pytest.mark.parametrize("back_end", ["emulator"], indirect=True)
def test_a_run_whose_directory_is_moved_away_says_so_and_leaves_nothing_in_its_place(stage: Stage) -> None:
    run = stage.submit(stage.write_job("moved", command(STEADY)))
    wait_until(lambda: run.attempt(0).metrics.exists())
    moved = run.path.rename(stage.folder / "moved")
    wait_until(lambda: not alive(run), 60, "its end")
    assert not run.path.exists()
    wait_until(lambda: not stage.slurm("squeue", "-h").strip(), 60, "the end of its job")
    moved.rename(run.path)
    found = why(stage, run)
    assert (found["class"], found["cause"]) == ("launch", f"moved or removed during the run: {run.path}")
