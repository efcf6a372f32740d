"""How the writer of a node watches its ranks, and when it raises an alarm."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.recorded import write_beat
from support.scenario import wait_until

from clusterctl.shared.node import node_watch
from clusterctl.shared.node.node_watch import NodeWatch
from clusterctl.shared.record.files import read_json
from clusterctl.shared.record.heartbeats import Beat, read_beats
from clusterctl.shared.record.layout import Attempt, RunDir
from clusterctl.shared.spec import Watchdog

TRAINING = Beat(1000.0, "training", 900.0, 50, 999.0, 0.1, 0.0, 0.05, None, 11, "node1")  # its patience is the floor
WAITING = replace(TRAINING, waiting=999.0)
IDLE = replace(TRAINING, step=0, step_time=None, step_seconds=None, slow_seconds=None, busy_seconds=None, idle=1900.0)


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    made = RunDir(tmp_path / "run").attempt(0)
    made.beats(0).parent.mkdir(parents=True)
    monkeypatch.setattr(node_watch, "CONFIRM_SECONDS", 0.05)
    return made


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Node:
    """A node with two ranks, checked once a second."""

    attempt: Attempt
    watch: NodeWatch
    clock: Clock

    def look(self, *beats: Beat, seconds: int = 1) -> None:
        for rank, beat in enumerate(beats):
            write_beat(self.attempt, rank, beat)
        for _ in range(seconds):
            self.clock.now += 1
            self.watch.look(dict(enumerate(beats)))

    def look_until_sure(self, *beats: Beat) -> dict[str, Any]:
        path = self.attempt.hang_report_json if self.watch.settings.action == "report" else self.attempt.hang_json
        wait_until(lambda: self.look(*beats) or path.exists())  # type: ignore[func-returns-value]
        return dict(read_json(path))


def node_of(attempt: Attempt, node: int = 0, nodes: int = 1, **settings: Any) -> Node:
    clock = Clock()
    return Node(attempt, NodeWatch(attempt, node, nodes, 2, Watchdog(floor=3, **settings), clock), clock)


def restart_of(attempt: Attempt) -> Any:
    return read_json(RunDir(attempt.path.parents[1]).requeue_json)


def test_a_stuck_rank_ends_the_attempt_and_a_restart_is_requested_at_the_end(
    attempt: Attempt,
) -> None:
    node = node_of(attempt)
    node.look(WAITING, TRAINING, seconds=3)
    assert (node.watch.alarm, attempt.hang_lease.exists()) == ("", False)
    alarm = node.look_until_sure(WAITING, TRAINING)
    assert (alarm["by"], alarm["seen"], alarm["phase"], alarm["suspects"]) == (0, 0, "training", [1])
    assert node.watch.alarm == "hang"
    assert restart_of(attempt) is None
    node.watch.end()
    request = restart_of(attempt)
    assert (request["attempt"], request["reason"], request["step"]) == (0, "hang", 50)


def test_the_rank_that_is_not_waiting_is_the_suspect(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        node_watch, "CONFIRM_SECONDS", 0.5
    )  # long enough for both to write again, even on a busy machine
    node = node_of(attempt)
    moments = iter(range(1000, 10**6))

    def look() -> bool:
        now = float(next(moments))
        node.look(replace(WAITING, time=now), replace(TRAINING, time=now))
        return attempt.hang_json.exists()

    wait_until(look)
    alarm = read_json(attempt.hang_json)
    assert (alarm["suspects"], alarm["how"]) == ([1], "busy")


def test_action_fail_requests_no_restart(attempt: Attempt) -> None:
    node = node_of(attempt, action="fail")
    node.look_until_sure(WAITING, TRAINING)
    node.watch.end()
    assert restart_of(attempt) is None


def test_action_report_only_reports_a_stuck_rank(attempt: Attempt) -> None:
    node = node_of(attempt, action="report")
    assert node.look_until_sure(TRAINING, TRAINING)["seen"] == 0
    node.look(TRAINING, TRAINING, seconds=9)
    assert (node.watch.alarm, node.watch.raised, attempt.hang_json.exists()) == ("report", None, False)


def test_a_disabled_watchdog_still_obeys_another_nodes_alarm(attempt: Attempt) -> None:
    node = node_of(attempt, enabled=False)
    node.look(TRAINING, TRAINING, seconds=100)
    assert (node.watch.alarm, attempt.hang_lease.exists()) == ("", False)
    attempt.hang_json.write_text("{}")
    node.look(TRAINING, TRAINING)
    assert (node.watch.alarm, node.watch.raised) == ("hang", None)


def test_no_file_is_read_while_all_ranks_make_progress(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(node_watch, "alarm_of")
    node = node_of(attempt, factor=30.0)
    for step in range(100):
        beat = replace(TRAINING, step=step // 2, slow_seconds=2.0)
        node.look(beat, beat)
    assert node.watch.alarm == ""


def test_ranks_that_recover_before_confirmation_raise_no_alarm(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_watch, "CONFIRM_SECONDS", 0.3)
    node = node_of(attempt)
    node.look(TRAINING, TRAINING, seconds=5)
    assert attempt.hang_lease.exists()
    wait_until(node.watch._judge.looks)
    node.look(replace(TRAINING, step=51), replace(TRAINING, step=51))
    node.look(replace(TRAINING, step=52), replace(TRAINING, step=52))
    assert (node.watch.alarm, attempt.hang_lease.exists()) == ("", False)


def test_a_frozen_node_is_noticed_by_the_node_before_it(attempt: Attempt) -> None:
    node = node_of(attempt, node=1, nodes=2)
    write_beat(attempt, 7, TRAINING)  # on node 0, the next one
    for step in range(60):
        node.clock.now += 1
        beats = {8: replace(TRAINING, step=step)}
        if step % 10 == 0:
            node.watch.look_at_next()
        node.watch.look(beats)
    wait_until(lambda: node.watch.look({8: replace(TRAINING, step=time.monotonic_ns())}) or node.watch.alarm)  # type: ignore[func-returns-value]
    alarm = read_json(attempt.hang_json)
    assert (alarm["seen"], alarm["by"]) == (7, 1)


def test_late_heartbeats_on_a_slow_file_system_are_not_a_frozen_node(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_watch, "lateness", lambda path: 70.0)
    node = node_of(attempt, node=1, nodes=2)
    for second in range(200):
        if second % 60 == 0:
            write_beat(attempt, 7, replace(TRAINING, step=second))
        if second % 10 == 0:
            node.watch.look_at_next()
        node.look(seconds=1)
        node.watch.look({8: replace(TRAINING, step=second)})
    assert (node.watch.alarm, attempt.hang_lease.exists()) == ("", False)


def test_confirmation_takes_as_long_as_heartbeats_may_be_late(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(node_watch, "lateness", lambda path: 70.0)
    # not time.sleep itself, which threads of other tests may call
    clocks = SimpleNamespace(sleep=slept.append, monotonic=time.monotonic, time=time.time)
    monkeypatch.setattr(node_watch, "time", clocks)
    node_of(attempt).look_until_sure(WAITING, TRAINING)
    assert slept
    assert all(seconds > 70 for seconds in slept)


def idle_until(node: Node, seconds: float, other: float, alarm: str) -> None:
    def look() -> bool:
        node.clock.now += 1
        beats = {rank: replace(IDLE, time=time.time(), idle=idle) for rank, idle in enumerate((seconds, other))}
        for rank, beat in beats.items():
            write_beat(node.attempt, rank, beat)
        node.watch.look(beats)
        return node.watch.alarm == alarm

    wait_until(look)


def test_a_run_whose_ranks_are_all_idle_is_reported_once(attempt: Attempt) -> None:
    node = node_of(attempt)
    idle_until(node, 1900.0, 1850.0, "report")
    alarm = read_json(attempt.hang_report_json)
    assert (alarm["how"], alarm["suspects"], alarm["still_seconds"], alarm["by"]) == ("idle", [], 1850, 0)
    assert (node.watch.raised, attempt.hang_json.exists(), restart_of(attempt)) == (None, False, None)


@pytest.mark.parametrize(("action", "requests"), [("restart", True), ("fail", False)])
def test_a_run_whose_ranks_are_all_idle_is_ended_if_configured(attempt: Attempt, action: str, requests: bool) -> None:
    node = node_of(attempt, action=action)
    idle_until(node, 1900.0, 1900.0, "hang")
    assert read_json(attempt.hang_json)["how"] == "idle"
    node.watch.end()
    request = restart_of(attempt)
    assert (request is not None) is requests
    assert not requests or (request["reason"], request["progress"]) == ("hang", True)


@pytest.mark.parametrize(
    ("action", "alarm", "requests"), [(None, "hang", False), ("restart", "hang", True), ("report", "report", False)]
)
def test_idle_gpus_end_the_attempt_if_configured(
    attempt: Attempt, action: str | None, alarm: str, requests: bool
) -> None:
    at_work = replace(TRAINING, step_time=None, slow_seconds=None)  # patience: 900 s until the first steps
    node = node_of(attempt, action=action, idle_gpu=600)

    def look(idle: float | None) -> None:
        node.clock.now += 1
        beats = {rank: replace(at_work, time=time.time(), gpu_idle=idle) for rank in range(2)}
        for rank, beat in beats.items():
            write_beat(node.attempt, rank, beat)
        node.watch.look(beats)

    for idle in (None, 0.0, 599.0):
        look(idle)
        assert not attempt.hang_lease.exists()
    wait_until(lambda: look(610.0) or node.watch.alarm == alarm)  # type: ignore[func-returns-value]
    path = attempt.hang_report_json if alarm == "report" else attempt.hang_json
    written = read_json(path)
    assert (written["how"], written["still_seconds"], written["limit_seconds"]) == ("idle-gpus", 610, 600)
    if node.watch.raised:
        node.watch.end()
    assert (restart_of(attempt) is not None) is requests


def test_idle_gpus_end_nothing_by_default(attempt: Attempt) -> None:
    node = node_of(attempt)
    node.look(replace(TRAINING, gpu_idle=1e6, step_time=None, slow_seconds=None), seconds=5)
    assert (node.watch.alarm, attempt.hang_lease.exists()) == ("", False)


def test_a_busy_rank_on_another_node_prevents_the_idle_alarm(attempt: Attempt) -> None:
    node = node_of(attempt)
    write_beat(attempt, 9, replace(IDLE, idle=3.0), node=1)
    node.watch.nodes, node.watch.world_size = 2, 3
    node.watch.__post_init__()
    looked = []
    for _ in range(30):
        node.look(replace(IDLE, time=time.time()), replace(IDLE, time=time.time()))
        looked.append(attempt.hang_lease.exists())
        time.sleep(0.01)
    assert any(looked)
    assert node.watch.alarm == ""
    assert set(read_beats(attempt.beats(1))) == {9}
