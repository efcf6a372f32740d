"""Mirroring a run to a tracker: each point is sent once, despite restarts and mirror crashes."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
from conftest import CREATED, Fabricate
from support.made_runs import tracked_run

from clusterctl.launcher.observe.run_record import read_record
from clusterctl.launcher.observe.state import Status
from clusterctl.launcher.trackers.mirror import Mirror, TrackedPoint, open_sink, parameters
from clusterctl.shared.errors import ClusterctlError, ConfigError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State
from clusterctl.shared.spec.job import Track

TENSORBOARD = Track(tensorboard=True)


class Tracker:
    """An in-memory tracker that raises an error on request."""

    def __init__(self) -> None:
        self.points: list[tuple[int, str, float]] = []
        self.ends: list[str] = []
        self.openings = 0
        self.failure: str = ""

    def __call__(self, *_: object) -> Tracker:
        self.openings += 1
        return self

    def add(self, points: list[TrackedPoint]) -> None:
        if self.failure:
            raise ConnectionError(f"{self.failure}\nand more")
        self.points += [(point.step, name, value) for point in points for name, value in point.values.items()]

    def finish(self, state: State) -> None:
        self.ends.append(state.value)

    def close(self) -> None:
        pass


def steps(*numbers: int, **more: float) -> list[dict[str, float]]:
    return [{"time": CREATED + number, "step": number, "loss": 1.0 / number, **more} for number in numbers]


def status_of(run: RunDir, state: State) -> Status:
    return Status(read_record(run), state, True, "12", (), False, "", None, None)


def update(run: RunDir, tracker: Tracker, state: State = State.TRAINING) -> int:
    """One update by a newly started mirror."""
    return Mirror("tensorboard", read_record(run), tracker).update(status_of(run, state))


def test_each_update_sends_only_new_points(fabricate: Fabricate) -> None:
    tracker, run = Tracker(), tracked_run(fabricate, TENSORBOARD, {"attempts/0/metrics.jsonl": steps(1, 2)})
    assert (update(run, tracker), update(run, tracker)) == (2, 0)
    with run.attempt(0).metrics.open("a") as file:
        file.write(json.dumps(steps(3)[0]) + '\n{"step": 4, "lo')
    assert update(run, tracker) == 1
    with run.attempt(0).metrics.open("a") as file:
        file.write('ss": 0.25}\n')
    assert update(run, tracker) == 1
    assert [step for step, _, _ in tracker.points] == [1, 2, 3, 4]
    assert tracker.openings == 3  # not opened without new points


def test_steps_repeated_by_a_restart_are_sent_once(fabricate: Fabricate) -> None:
    files = {
        "attempts/0/metrics.jsonl": [*steps(1, 2, 3, 4), {"step": 4, "val_accuracy": 0.5}],
        "attempts/1/metrics.jsonl": [*steps(3, 4, 5), {"step": 5, "val_accuracy": 0.6}],
    }
    tracker = Tracker()
    assert update(tracked_run(fabricate, TENSORBOARD, files), tracker) == 7
    assert [(step, name) for step, name, _ in tracker.points] == [
        *((step, "loss") for step in (1, 2, 3, 4)), (4, "val_accuracy"), (5, "loss"), (5, "val_accuracy")
    ]  # fmt: skip


def test_points_missed_during_an_outage_are_sent_later(fabricate: Fabricate) -> None:
    tracker, run = Tracker(), tracked_run(fabricate, TENSORBOARD, {"attempts/0/metrics.jsonl": steps(1, 2)})
    tracker.failure = "no route"
    with pytest.raises(ConfigError, match="^tensorboard: ConnectionError: no route\n"):
        update(run, tracker)
    tracker.failure = ""
    assert (update(run, tracker), len(tracker.points)) == (2, 2)


def test_the_final_state_is_sent_once_and_again_after_a_resume(fabricate: Fabricate) -> None:
    tracker, run = Tracker(), tracked_run(fabricate, TENSORBOARD, {"attempts/0/metrics.jsonl": steps(1)})
    for state in (State.TRAINING, State.FAILED, State.FAILED, State.TRAINING, State.FINISHED, State.FINISHED):
        update(run, tracker, state)
    assert tracker.ends == ["failed", "finished"]
    mirror = Mirror("tensorboard", read_record(run), tracker)
    mirror.update(replace(status_of(run, State.LOST), sure=False))
    assert tracker.ends == ["failed", "finished"]


def test_late_points_are_followed_by_the_final_state_again(fabricate: Fabricate) -> None:
    """A tracker treats a reopened run as running."""
    tracker, run = Tracker(), tracked_run(fabricate, TENSORBOARD, {"attempts/0/metrics.jsonl": steps(1)})
    update(run, tracker, State.FINISHED)
    with run.attempt(0).metrics.open("a") as file:
        file.write(json.dumps(steps(2)[0]) + "\n")
    update(run, tracker, State.FINISHED)
    assert tracker.ends == ["finished", "finished"]


def test_missing_steps_are_numbered_and_counters_are_not_sent_as_metrics(fabricate: Fabricate) -> None:
    lines = [{"loss": 0.5, "epoch": 1, "steps": 9}, {"val_accuracy": 0.3}, {"loss": 0.4}, {"name": "x"}]
    tracker = Tracker()
    update(tracked_run(fabricate, TENSORBOARD, {"attempts/0/metrics.jsonl": lines}), tracker)
    assert tracker.points == [(1, "loss", 0.5), (1, "val_accuracy", 0.3), (2, "loss", 0.4)]


def test_a_damaged_position_starts_from_the_beginning(fabricate: Fabricate) -> None:
    files = {"attempts/0/metrics.jsonl": steps(1), "trackers/tensorboard.json": '{"attempt": "x", "steps": [1]}'}
    assert update(tracked_run(fabricate, TENSORBOARD, files), Tracker()) == 1


def test_the_parameters_are_the_settings_without_secrets(fabricate: Fabricate) -> None:
    found = parameters(read_record(tracked_run(fabricate, TENSORBOARD)))
    assert found["workload"] == "command"
    assert found["env.A_TOKEN"] == "***"
    assert found["resources.time"] == "1h"


def test_a_missing_tracker_library_is_reported_with_the_pip_command(
    fabricate: Fabricate, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tracked_run(fabricate, TENSORBOARD, {"attempts/0/metrics.jsonl": steps(1)})
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    for name in [name for name in sys.modules if name.startswith(("tensorboard.", "clusterctl.launcher.trackers.to_"))]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ClusterctlError) as caught:
        Mirror("tensorboard", read_record(run), open_sink).update(status_of(run, State.TRAINING))
    assert caught.value.hint == f"{sys.executable} -m pip install tensorboard"
