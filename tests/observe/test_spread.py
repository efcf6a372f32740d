"""The range and the mean of values over the time."""

from __future__ import annotations

import pytest

from clusterctl.observe.spread import Spread


def spread(*values: tuple[float, float]) -> Spread:
    made = Spread()
    for time, value in values:
        made.add(time, value)
    return made


def test_nothing_is_known_before_the_first_value() -> None:
    empty = spread()
    assert empty.low is empty.high is empty.last is empty.mean() is None


def test_of_values_in_equal_distances_the_mean_is_the_plain_one() -> None:
    made = spread((10, 3.0), (15, 1.0), (20, 2.0))
    assert (made.low, made.high, made.last) == (1.0, 3.0, 2.0)
    assert made.mean() == pytest.approx(2.0)


def test_a_value_counts_for_as_long_as_it_held() -> None:
    assert spread((10, 0.0), (105, 1.0)).mean() == pytest.approx(0.95)


def test_a_clock_that_was_set_back_takes_nothing_away() -> None:
    assert spread((10, 1.0), (5, 3.0)).mean() == 1.0
