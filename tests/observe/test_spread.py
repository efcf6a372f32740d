"""The range and the mean of values over time."""

from __future__ import annotations

import pytest

from clusterctl.launcher.observe.history import Spread


def spread(*values: tuple[float, float]) -> Spread:
    made = Spread()
    for time, value in values:
        made.add(time, value)
    return made


def test_without_values_everything_is_unknown() -> None:
    empty = spread()
    assert empty.low is empty.high is empty.last is empty.mean() is None


def test_evenly_spaced_values_have_a_plain_mean() -> None:
    made = spread((10, 3.0), (15, 1.0), (20, 2.0))
    assert (made.low, made.high, made.last) == (1.0, 3.0, 2.0)
    assert made.mean() == pytest.approx(2.0)


def test_values_are_weighted_by_their_duration() -> None:
    assert spread((10, 0.0), (105, 1.0)).mean() == pytest.approx(0.95)


def test_a_clock_set_back_subtracts_nothing() -> None:
    assert spread((10, 1.0), (5, 3.0)).mean() == 1.0
