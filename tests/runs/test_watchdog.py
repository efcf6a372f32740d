"""When a rank counts as standing still, who is suspected, and what happens then."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support.scenario import wait_until

from clusterctl.runs import judgement, watchdog
from clusterctl.runs.events import Events
from clusterctl.runs.files import read_json, read_lines
from clusterctl.runs.heartbeats import ENDED, Beat, write_beat
from clusterctl.runs.layout import Attempt, RunDir
from clusterctl.runs.place import Place
from clusterctl.runs.stages import Stage
from clusterctl.runs.watchdog import EXIT_HUNG, Stillness, Watch, action, patience, stacks_text
from clusterctl.spec import Watchdog

DEFAULT = Watchdog()
TRAINING = Beat(1000.0, "training", 900.0, 50, 999.0, 0.1, 0.2, 0.05, None, 11, "node1")


def test_training_has_a_floor_and_otherwise_goes_by_its_own_steps() -> None:
    assert patience(DEFAULT, TRAINING) == 30
    assert patience(DEFAULT, replace(TRAINING, slow_seconds=5.0)) == 150
    assert patience(Watchdog(floor=3, factor=2.0), replace(TRAINING, slow_seconds=5.0)) == 10


def test_by_default_a_hang_of_fast_steps_is_named_within_a_minute() -> None:
    notice = patience(DEFAULT, replace(TRAINING, slow_seconds=1.0)) + 2 + judgement.CONFIRM_SECONDS + 1
    assert notice + watchdog._DUMP_SECONDS < 60


def test_other_phases_and_the_first_steps_have_limits_of_their_own() -> None:
    first = replace(TRAINING, slow_seconds=None, step_seconds=None)
    assert patience(DEFAULT, first) == DEFAULT.starting
    assert patience(DEFAULT, replace(TRAINING, phase=Stage.EVALUATING)) == DEFAULT.evaluating
    assert patience(DEFAULT, replace(TRAINING, phase=Stage.LOADING)) == DEFAULT.loading
    assert patience(DEFAULT, replace(TRAINING, phase=Stage.CHECKPOINTING)) == DEFAULT.checkpointing
    assert patience(DEFAULT, replace(TRAINING, phase=Stage.IMPORTING)) == DEFAULT.starting
    assert patience(DEFAULT, replace(TRAINING, phase=ENDED)) == float("inf")


IDLE = replace(TRAINING, step=0, step_time=None, step_seconds=None, slow_seconds=None, busy_seconds=None, idle=5.0)


def test_a_program_that_logs_no_steps_is_not_ended_for_that() -> None:
    assert patience(DEFAULT, IDLE) == float("inf")
    assert patience(DEFAULT, replace(IDLE, idle=None)) == DEFAULT.starting


@pytest.mark.parametrize(
    ("said", "by_steps", "by_what_it_does"),
    [(None, "restart", "report"), ("restart",) * 3, ("fail",) * 3, ("report",) * 3],
)
def test_a_program_that_logs_no_steps_is_ended_only_where_the_job_says_so(
    said: str | None, by_steps: str, by_what_it_does: str
) -> None:
    assert action(Watchdog(action=said), logs_steps=True) == by_steps
    assert action(Watchdog(action=said), logs_steps=False) == by_what_it_does


def test_half_an_hour_with_an_evaluation_of_twenty_times_a_step_raises_no_alarm() -> None:
    """Played second by second: 50 steps of 2 s, then an evaluation of 40 s, told as a phase or hidden in a step."""
    for hidden in (False, True):
        still, clock, beat = Stillness(), 0.0, replace(TRAINING, slow_seconds=2.0, step=0)
        for second in range(1800):
            clock += 1.0
            within = second % 140
            if within < 100:
                beat = replace(beat, phase="training", step=beat.step + (within % 2 == 0), time=clock)
            elif not hidden:
                beat = replace(beat, phase="evaluating", time=clock)
            assert still.look(beat, clock) <= patience(DEFAULT, beat)


def test_standing_still_is_counted_by_the_lookers_own_clock() -> None:
    still = Stillness()
    assert still.look(None, 0.0) == 0
    for second in range(40):  # the node's clock stands, or runs: it does not matter
        seconds = still.look(replace(TRAINING, time=5.0 * second), float(second))
    assert seconds == 39
    assert still.look(replace(TRAINING, step=51), 41.0) == 0


def test_a_looker_that_was_itself_away_does_not_blame_the_others() -> None:
    still = Stillness()
    still.look(TRAINING, 0.0)
    assert still.look(TRAINING, 3600.0) < 5  # the machine was suspended


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    made = RunDir(tmp_path / "run").attempt(0)
    (made.path / "heartbeats").mkdir(parents=True)
    monkeypatch.setattr(judgement, "CONFIRM_SECONDS", 0.0)
    for name in ("_LEAVE_SECONDS", "BEAT_SECONDS"):
        monkeypatch.setattr(watchdog, name, 0.0)
    for name in ("_ANSWER_SECONDS", "_DUMP_SECONDS"):
        monkeypatch.setattr(watchdog, name, 0.1)
    return made


def watch_of(attempt: Attempt, rank: int, left: list[int], world_size: int = 2, **settings: object) -> Watch:
    place = Place(rank=rank, local_rank=rank, world_size=world_size)
    return Watch(attempt, place, Events(attempt, rank), Watchdog(floor=1, **settings), left.append)  # type: ignore[arg-type]


def look_until_sure(watcher: Watch, alarm: Path) -> None:
    wait_until(lambda: watcher.look() or alarm.exists())  # type: ignore[func-returns-value]


def test_the_first_to_notice_ends_the_attempt_and_the_others_tell_where_they_stand(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_beat(attempt.heartbeat(0), replace(TRAINING, pid=os.getpid(), waiting=999.0, slow_seconds=0.0))
    write_beat(attempt.heartbeat(1), replace(TRAINING, pid=os.getpid(), slow_seconds=0.0))
    clock = [0.0]
    monkeypatch.setattr(watchdog.Stillness, "look", lambda self, beat, now: clock[0])
    left: list[int] = []
    watcher, other = watch_of(attempt, 0, left), watch_of(attempt, 1, left)
    watcher.look()
    assert not attempt.hang_json.exists()
    clock[0] = 5.0
    look_until_sure(watcher, attempt.hang_json)
    alarm = read_json(attempt.hang_json)
    assert (alarm["by"], alarm["seen"], alarm["phase"]) == (0, 1, "training")
    assert left == [EXIT_HUNG]
    other.look()
    assert left == [EXIT_HUNG, EXIT_HUNG]
    for rank in (0, 1):
        events = list(read_lines(attempt.events(rank)))
        assert [event["event"] for event in events] == ["hang", "exit"]
        assert "stacks" in events[0]
        assert attempt.stacks(rank).is_file()
    asked = read_json(RunDir(attempt.path.parents[1]).requeue_json)
    assert (asked["attempt"], asked["reason"], asked["step"]) == (0, "hang", 50)


def test_as_configured_it_fails_without_asking_to_be_started_again(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_beat(attempt.heartbeat(1), replace(TRAINING, slow_seconds=0.0))
    monkeypatch.setattr(watchdog.Stillness, "look", lambda self, beat, now: 9.0)
    left: list[int] = []
    watcher = watch_of(attempt, 0, left, action="fail")
    look_until_sure(watcher, attempt.hang_json)
    assert left == [EXIT_HUNG]
    assert not RunDir(attempt.path.parents[1]).requeue_json.exists()


class Observer:
    """Of a program that logs no steps; `alarm` has the heartbeats of all ranks once they are stuck."""

    idle, limit = 1900.0, 1800.0

    def __init__(self, *ranks: Beat) -> None:
        self.alarm = dict(enumerate(ranks))

    def stacks(self) -> str:
        return "process 4145: python train.py"


def observing(attempt: Attempt, rank: int, observer: Observer, left: list[int], **settings: object) -> Watch:
    watch = watch_of(attempt, rank, left, **settings)
    watch._events.heart.observer = observer  # type: ignore[assignment]
    write_beat(attempt.heartbeat(rank), replace(IDLE, pid=os.getpid(), idle=1900.0))
    return watch


def test_ranks_that_are_all_idle_are_reported_once_with_what_their_programs_wait_for_and_go_on(
    attempt: Attempt,
) -> None:
    left: list[int] = []
    stuck = replace(IDLE, idle=1900.0)
    first = observing(attempt, 0, Observer(stuck, replace(stuck, idle=1850.0)), left)
    other = observing(attempt, 1, Observer(), left)
    for _ in range(3):
        first.look()
        other.look()
    assert (left, attempt.hang_json.exists()) == ([], False)
    alarm = read_json(attempt.hang_report_json)
    assert (alarm["how"], alarm["suspects"], alarm["still_seconds"], alarm["by"]) == ("idle", [], 1850, 0)
    for rank in (0, 1):
        (event,) = read_lines(attempt.events(rank))
        assert (event["event"], event["stacks"]) == ("hang", "process 4145: python train.py")
    assert not RunDir(attempt.path.parents[1]).requeue_json.exists()


@pytest.mark.parametrize(("said", "requests"), [("restart", True), ("fail", False)])
def test_ranks_that_are_all_idle_are_ended_where_the_job_says_so(attempt: Attempt, said: str, requests: bool) -> None:
    left: list[int] = []
    observing(attempt, 0, Observer(replace(IDLE, idle=1900.0)), left, action=said).look()
    assert left == [EXIT_HUNG]
    assert read_json(attempt.hang_json)["how"] == "idle"
    asked = read_json(RunDir(attempt.path.parents[1]).requeue_json)
    assert (asked is not None) is requests
    assert not requests or (asked["reason"], asked["progress"]) == ("hang", True)


def test_where_the_job_says_so_a_rank_that_stands_still_is_reported_and_goes_on(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_beat(attempt.heartbeat(0), replace(TRAINING, pid=os.getpid()))
    write_beat(attempt.heartbeat(1), replace(TRAINING, slow_seconds=0.0))
    monkeypatch.setattr(watchdog.Stillness, "look", lambda self, beat, now: 9.0)
    left: list[int] = []
    watcher = watch_of(attempt, 0, left, action="report")
    look_until_sure(watcher, attempt.hang_report_json)
    for _ in range(2):
        watcher.look()
    assert (left, attempt.hang_json.exists()) == ([], False)
    assert read_json(attempt.hang_report_json)["seen"] == 1
    assert [event["event"] for event in read_lines(attempt.events(0))] == ["hang"]


def test_switched_off_it_raises_no_alarm(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    write_beat(attempt.heartbeat(1), TRAINING)
    monkeypatch.setattr(watchdog.Stillness, "look", lambda self, beat, now: 1e9)
    left: list[int] = []
    watcher = watch_of(attempt, 0, left, enabled=False)
    for _ in range(3):
        watcher.look()
    assert (left, attempt.hang_json.exists()) == ([], False)


def test_a_rank_that_goes_on_before_it_is_sure_raises_no_alarm(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judgement, "CONFIRM_SECONDS", 0.3)
    write_beat(attempt.heartbeat(1), replace(TRAINING, slow_seconds=0.0))
    answers = iter([9.0, 0.0, 9.0])
    monkeypatch.setattr(watchdog.Stillness, "look", lambda self, beat, now: next(answers))
    left: list[int] = []
    watcher = watch_of(attempt, 0, left)
    watcher.look()
    wait_until(watcher._judge.looks)
    watcher.look()
    watcher.look()
    assert (left, attempt.hang_json.exists()) == ([], False)


def test_stacks_tell_every_thread_with_the_main_one_first() -> None:
    text: list[str] = []
    thread = threading.Thread(target=lambda: text.append(stacks_text()))
    thread.start()
    thread.join()
    assert text[0].startswith("Thread MainThread:\n")
    assert "test_stacks_tell_every_thread" in text[0]
    assert "stacks_text" not in text[0].split("\n\n")[0]


STUCK = """
import os, sys, time
from pathlib import Path
from clusterctl.runs.layout import Attempt
from clusterctl.runs.watchdog import register_dump
register_dump(Attempt(Path(sys.argv[1])), 0)
def deep():
    print("ready", flush=True)
    while True: time.sleep(0.01)
deep()
"""


@pytest.mark.parametrize("stuck", [0, 1, 2])
def test_a_process_whose_python_threads_cannot_run_has_its_stacks_written_by_a_signal_of_its_node(
    attempt: Attempt, stuck: int
) -> None:
    """Its own task or the nearest living rank before it asks for them, wherever the alarm rose."""
    program = STUCK.replace(", 0)", f", {stuck})")
    environment = os.environ | {"CLUSTERCTL_RUN_DIR": str(attempt.path.parents[1])}
    argv = [sys.executable, "-c", program, attempt.path]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        here = replace(TRAINING, host=socket.gethostname())
        for rank in range(3):
            write_beat(attempt.heartbeat(rank), replace(here, pid=process.pid if rank == stuck else os.getpid()))
        write_beat(attempt.heartbeat(3), replace(here, host="elsewhere", pid=process.pid))
        attempt.hang_json.write_text("{}")
        left: list[int] = []
        watch_of(attempt, 0, left, world_size=4).look()
        path, deadline = attempt.stacks(stuck).with_suffix(".signal"), time.monotonic() + 10
        while "in deep" not in path.read_text() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.kill()
    assert path.read_text().count("in deep") == 1
    assert left == [EXIT_HUNG]
