"""Runs on a slow, unreliable file system: stale reads, no links or locks, occasional faults, a skewed clock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.late_fixture import HOUR, faults_of, mounted, skewed
from support.late_mount import REAL, Settings, Views
from support.recorded import recorded
from support.sandbox_fixture import RunningSandbox
from support.scenario import Stage, alive, wait_until

from clusterctl.launcher.observe.rank_events import Began, last_events
from clusterctl.launcher.sandbox import lifecycle
from clusterctl.launcher.sandbox.description import SandboxRequest
from clusterctl.shared.record.files import read_json, read_lines
from clusterctl.shared.record.layout import RunDir

STEPS = 30
# As in docs/guides/surviving.md, but retries its own file operations; its first attempt waits at step 20.
PROGRAM = f"""
import json, os, time
import clusterctl.program as run
def again(call):
    while True:
        try:
            return call()
        except OSError:
            time.sleep(0.2)
rank, attempt, step, total = int(os.environ["RANK"]), os.environ["CLUSTERCTL_ATTEMPT"], 0, 0
if folder := run.latest_checkpoint():
    step, total = json.loads(again((folder / "state.json").read_text))
print("from", step, flush=True)
while step < {STEPS}:
    step += 1
    total += step
    run.log(step=step, steps={STEPS}, loss=1 / step)
    if rank == 0 and (run.stop_requested() or step % 10 == 0):
        with run.checkpoint(step) as folder:
            again(lambda: (folder / "state.json").write_text(json.dumps([step, total])))
    while attempt == "0" and step >= 20 and not run.stop_requested():
        time.sleep(0.2)
    if run.stop_requested():
        run.request_restart(step)
    time.sleep(0.02)
print("total", total)
"""


DATA = Path(__file__).parents[2] / "data" / "cora"
TRAINING = f"""
workload = "reddit"
[data]
root = {json.dumps(str(DATA))}
[train]
epochs = 60
batch_size = 128
evaluate_every = 20
[checkpoint]
every = "1s"
keep = 100
[resources]
nodes = 2
tasks_per_node = 1
"""


def command(program: str) -> str:
    words = json.dumps(["python", "-c", program])
    return f'workload = "command"\nargv = {words}\n[resources]\nnodes = 2\ntasks_per_node = 2\n'


@pytest.fixture
def back_end(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", "emulator"))


@pytest.fixture
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """Changes are seen a few seconds late in `make test`, up to half a minute in `make test-long`."""
    places = {"backing": str(tmp_path / "backing"), "mount": str(tmp_path / "runs"), "record": str(tmp_path / "faults")}
    most = 30 if request.node.get_closest_marker("long") else 6
    return Settings(**places, least=3, most=most, faults=0.01, slow=0.3)


@pytest.fixture
def mount(settings: Settings) -> Iterator[None]:
    with mounted(settings):
        yield
    print(faults_of(settings))


@pytest.fixture
def sandbox(mount: None, sandbox_home: RunningSandbox) -> RunningSandbox:
    """A separate sandbox: nodes see only what was mounted before they started."""
    lifecycle.up(sandbox_home.folder, SandboxRequest(nodes=3))
    return sandbox_home


@pytest.fixture
def late(mount: None, stage: Stage, clock_shim: Path) -> Iterator[Stage]:
    """The stage, with its runs on the late file system and the clock of node2 an hour ahead."""
    stage.environment |= skewed(clock_shim, "node2", HOUR)
    yield stage
    left = [path.name for path in stage.runs.glob("[!.]*")]
    stage.call("cancel", "--yes", "--cluster", stage.cluster, *left)


def why(stage: Stage, run: RunDir) -> dict[str, Any]:
    """Wait for a cause other than "unknown": the records of other nodes arrive late."""
    known: dict[str, Any] = {}

    def cause_is_known() -> bool:
        done = stage.call("why", run.id, "--cluster", stage.cluster, "-o", "json")
        assert done.returncode == 0, done.stderr
        known.update(json.loads(done.stdout))
        return "unknown" not in (known["class"], *(past["class"] for past in known["history"]))

    wait_until(cause_is_known, 90, "the cause")
    return known


def from_the_server(settings: Settings, run: RunDir) -> RunDir:
    """The run as the file server has it, without delay."""
    return RunDir(Path(settings.backing) / run.id)


def assert_nothing_is_lost_or_doubled(run: RunDir, attempts: int) -> None:
    """Assert the number of attempts, that each logged a step only once, and that no event is read twice."""
    assert sum(attempt.host_json.exists() for attempt in run.attempts()) == attempts
    steps: dict[int, float] = {}
    for attempt in run.attempts():
        found = [line["step"] for line in read_lines(attempt.metrics) if "loss" in line]
        assert len(found) == len(set(found))
        steps |= dict.fromkeys(found, attempt.number)
        events, problems = last_events(attempt)
        assert problems == []
        assert [sum(isinstance(event, Began) for event in events[rank]) for rank in range(4)] == [1] * 4
    assert sorted(steps) == list(range(1, STEPS + 1))


def test_a_node_sees_its_own_changes_at_once_and_others_late() -> None:
    now = [0.0]
    views = Views(seed=1, least=3, most=30, clock=lambda: now[0])
    assert views.seen("x", "node2") is REAL  # node2 caches it from here on
    now[0] = 1
    views.change("x", "node1", "before")
    assert views.seen("x", "node1") is REAL
    now[0] = 3.9
    assert views.seen("x", "node2") == "before"
    assert views.seen("x", "node3") is REAL  # it has nothing cached
    now[0] = 31
    assert views.seen("x", "node2") is REAL


# Each waits for minutes for what other nodes have written: the emulator's turn comes in `make test-faults`.
ON_SLURM = pytest.mark.parametrize(
    "back_end", [pytest.param("emulator", marks=pytest.mark.faults), "sandbox"], indirect=True
)


@pytest.mark.long
@ON_SLURM
def test_a_run_rendezvouses_trains_and_finishes(late: Stage, settings: Settings) -> None:
    program = PROGRAM.replace('attempt == "0"', "False") + 'print(os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"])'
    run = late.submit(late.write_job("plain", command(program)), "--wait")
    logs = [late.log(run, rank).splitlines() for rank in range(4)]
    assert [lines[:2] for lines in logs] == [["from 0", f"total {STEPS * (STEPS + 1) // 2}"]] * 4
    assert len({lines[2] for lines in logs}) == 1
    assert (late.status(run)["stage"], why(late, run)["class"]) == ("finished", "finished")
    assert_nothing_is_lost_or_doubled(from_the_server(settings, run), attempts=1)


@pytest.mark.long
@ON_SLURM
def test_a_warned_run_resumes_from_the_same_step_on_all_ranks(late: Stage, settings: Settings) -> None:
    run = late.submit(late.write_job("warned", command(PROGRAM)))
    there = from_the_server(settings, run)
    wait_until(lambda: list(there.checkpoints.glob("0-20")), 120, "a checkpoint")
    late.slurm("scancel", "--signal=USR2", late.job_id(run))
    late.wait_for_state(run, "finished", seconds=200)
    begins = {there.attempt(1).log(rank).read_text().splitlines()[0] for rank in range(4)}
    assert begins == {f"from {read_json(there.requeue_json)['step']}"}
    assert_nothing_is_lost_or_doubled(there, attempts=2)
    assert why(late, run)["history"][0]["class"] == "preempted"


@pytest.mark.long
@ON_SLURM
def test_a_killed_rank_on_another_node_restarts_the_run(late: Stage, settings: Settings) -> None:
    run = late.submit(late.write_job("killed", command(PROGRAM)))
    there = from_the_server(settings, run)
    wait_until(lambda: list(there.checkpoints.glob("0-20")), 120, "a checkpoint")
    os.kill(max(alive(run, rank=2)), signal.SIGKILL)
    late.wait_for_state(run, "finished", seconds=300)
    assert len({there.attempt(1).log(rank).read_text().splitlines()[0] for rank in range(4)}) == 1
    assert_nothing_is_lost_or_doubled(there, attempts=2)
    found = why(late, run)["history"][0]
    assert found["class"] == "killed"
    assert found["cause"].startswith("rank 2 on node2")


@pytest.mark.long
def test_an_exception_on_the_node_with_a_skewed_clock_is_named_and_not_restarted(
    late: Stage, settings: Settings
) -> None:
    program = PROGRAM.replace(
        "step += 1", 'step += 1\n    if (rank, step) == (3, 15): raise ValueError("no such thing")'
    )
    run = late.submit(late.write_job("raises", command(program)))
    assert late.wait_for_state(run, "failed", seconds=200)["exit_code"] != 0
    assert len(from_the_server(settings, run).attempts()) == 1
    found = why(late, run)
    assert (found["class"], found["rank"], found["node"]) == ("user-error", 3, "node2")


@pytest.mark.long
def test_a_superseded_attempt_exits_and_does_not_finish_the_run(late: Stage, settings: Settings) -> None:
    run = late.submit(late.write_job("fenced", command(PROGRAM) + "[watchdog]\nenabled = false\n"))
    there = from_the_server(settings, run)
    wait_until(lambda: list(there.checkpoints.glob("0-20")), 120, "a checkpoint")
    newer = {**os.environ, "SLURMD_NODENAME": "node3"}  # a node that the first attempt is not on
    record = json.dumps({"attempt": 1, "job_id": "0"})  # as a batch script writes it: the first one looks for the comma
    begin = f'until mkdir -p "$1" && echo \'{record}\' >"$1/host.json"; do sleep 0.1; done'
    subprocess.run(["sh", "-c", begin, "sh", run.attempt(1).path], env=newer, check=True)
    wait_until(lambda: not alive(run), 90, "the first attempt to leave")
    assert all(any(event["event"] == "superseded" for event in recorded(there.attempt(0), rank)) for rank in range(4))
    ended = wait_until(lambda: ended_record(there), 120, "the end of its script")
    assert "restarting" not in ended
    assert "requeuing" not in ended
    assert not there.finished_json.exists()


def ended_record(run: RunDir) -> dict[str, Any] | None:
    """The record of the first attempt, once it has its end: it is overwritten in place."""
    with suppress(ValueError):
        record = read_json(run.attempt(0).host_json) or {}
        return dict(record) if "exit_code" in record else None
    return None


@pytest.mark.long
@pytest.mark.faults  # a quarter of an hour of waits
def test_a_warned_training_has_the_losses_of_an_uninterrupted_one(late: Stage, settings: Settings) -> None:
    calm = Stage(late.cluster, late.folder, late.environment | {"CLUSTERCTL_RUNS": str(late.folder / "prompt")})
    uninterrupted = calm.submit(late.write_job("calm", TRAINING), "--wait")
    run = late.submit(late.write_job("warned", TRAINING))
    there = from_the_server(settings, run)
    wait_until(lambda: list(there.checkpoints.glob("0-*")), 240, "a checkpoint")
    late.slurm("scancel", "--signal=USR2", late.job_id(run))
    late.wait_for_state(run, "finished", seconds=400)
    assert len(there.attempts()) == 2
    origin = read_json(there.attempt(1).origin_json)["checkpoint"]
    assert origin.startswith("0-")
    assert losses(there) == losses(uninterrupted)


def losses(run: RunDir) -> dict[int, float]:
    """Step -> loss; a later attempt replaces the steps that an earlier one took after its last checkpoint."""
    lines = (line for attempt in run.attempts() for line in read_lines(attempt.metrics))
    return {line["step"]: line["loss"] for line in lines if "loss" in line}
