"""The pace of a training, and the time left."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterctl.launcher.observe.measurements import Pace, pace_of, progress, seconds_left


def lines(*records: dict[str, Any]) -> list[bytes]:
    return [json.dumps(record).encode() for record in records]


def test_the_pace_includes_the_evaluations_between_steps() -> None:
    found = pace_of(
        lines(
            {"time": 100, "step": 10},
            {"time": 101, "step": 11},
            {"time": 103, "accuracy": 1},
            {"time": 104, "step": 14},
        )
    )
    assert found == Pace(1.0, 104)


@pytest.mark.parametrize(
    "records",
    [
        (),
        ({"time": 1, "step": 1},),
        ({"time": 1, "step": 1}, {"time": 1, "step": 2}),
        ({"time": 5, "step": 9}, {"time": 6, "step": 3}),  # the program restarted its count
        ({"time": "x", "step": 1}, {"time": 2, "step": True}),
    ],
)
def test_too_few_or_invalid_steps_give_no_pace(records: tuple[dict[str, Any], ...]) -> None:
    assert pace_of(lines(*records)) is None
    assert pace_of([b"{", b"nonsense", *lines(*records)]) is None


@pytest.mark.parametrize("jump", [86_400, -86_400, 30 * 86_400])
def test_a_clock_that_was_set_does_not_change_the_pace(jump: int) -> None:
    steps = [{"time": 1e6 + number / 2 + (jump if number > 60 else 0), "step": number} for number in range(100)]
    found = pace_of(lines(*steps))
    assert found is not None
    assert found.steps_per_second == pytest.approx(2.0, rel=0.02)
    for offset in (0, 86_400, -86_400):  # of this machine's clock
        left = seconds_left({"step": 99, "steps": 299}, found, found.time + offset)
        assert left == pytest.approx(100, rel=0.02)


def test_a_long_evaluation_or_slow_steps_count_in_the_pace() -> None:
    slow = [{"time": 1e6 + 7200 * number, "step": number} for number in range(3)]
    assert pace_of(lines(*slow)) == Pace(1 / 7200, 1e6 + 14_400)
    evaluated = [{"time": 1e6 + number + (3600 if number > 60 else 0), "step": number} for number in range(100)]
    found = pace_of(lines(*evaluated))
    assert found is not None
    assert found.steps_per_second == pytest.approx(99 / 3699)


def test_progress_is_counted_in_steps_or_else_in_epochs() -> None:
    assert progress({"step": 5, "steps": 20, "epoch": 3, "epochs": 4}) == 0.25
    assert progress({"epoch": 3, "epochs": 4}) == 0.75
    assert progress({"step": 30, "steps": 20}) == 1.0
    assert progress({"step": 30}) is progress({"step": 1, "steps": 0}) is None


def test_the_time_left_counts_down_between_writes_and_is_unknown_once_it_is_over() -> None:
    metrics = {"step": 40, "steps": 100}
    assert seconds_left(metrics, Pace(2.0, 1000), 1000) == 30
    assert seconds_left(metrics, Pace(2.0, 1000), 1010) == 20
    assert seconds_left(metrics, Pace(2.0, 1000), 1030) == 0
    assert seconds_left(metrics, Pace(2.0, 1000), 1031) is None  # such as that of a run that is stuck
    assert seconds_left({"step": 100, "steps": 100}, Pace(2.0, 1000), 9000) == 0
    assert seconds_left(metrics, None, 1000) is seconds_left({"step": 4}, Pace(2.0, 0), 0) is None
