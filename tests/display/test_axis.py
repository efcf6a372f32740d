"""The value axis of a chart."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.display.curves import Bounds, robust, whole
from clusterctl.launcher.observe.history import Point


def curve(*values: float) -> list[Point]:
    return [Point(x, value, value, value) for x, value in enumerate(values)]


LEARNING = [0.5 * math.exp(-step / 100) + 0.1 for step in range(300)]


def test_the_first_steps_do_not_flatten_the_rest() -> None:
    bounds = robust(curve(80.0, 20.0, 5.0, *LEARNING))
    assert bounds.low == pytest.approx(min(LEARNING))
    assert max(LEARNING[10:]) < bounds.high < 1.0


def test_a_spike_does_not_flatten_the_rest() -> None:
    assert robust(curve(*LEARNING, 1e6, *LEARNING[200:])).high < 1.0
    assert robust(curve(*LEARNING, -1e6, *LEARNING[200:])).low > -1.0


def test_a_typical_loss_is_shown_whole() -> None:
    points = curve(*LEARNING)
    assert robust(points) == whole(points)


def test_a_short_curve_is_shown_whole() -> None:
    assert robust(curve(100.0, *[1.0, 2.0] * 9)) == Bounds(1.0, 100.0)


@pytest.mark.parametrize("odd", [[], [7.0], [-7.0]])
def test_a_constant_curve_is_shown_whole(odd: list[float]) -> None:
    points = curve(*[1.0] * 100, *odd)
    assert robust(points) == whole(points)


VALUES = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=200)


@given(VALUES)
def test_the_axis_lies_within_the_values_and_holds_nine_in_ten(values: list[float]) -> None:
    points = curve(*values)
    low, high = robust(points)
    assert min(values) <= low <= high <= max(values)
    assert sum(low <= value <= high for value in values) >= 0.88 * len(values)


@given(VALUES, st.floats(0.01, 100), st.floats(-1e3, 1e3))
def test_the_axis_moves_with_the_values(values: list[float], factor: float, shift: float) -> None:
    low, high = robust(curve(*values))
    moved = robust(curve(*(factor * value + shift for value in values)))
    close = 1e-6 * (max(map(abs, values)) * factor + abs(shift) + 1e-9)
    assert moved == (pytest.approx(factor * low + shift, abs=close), pytest.approx(factor * high + shift, abs=close))


def test_values_are_clipped_to_the_bounds() -> None:
    assert [Bounds(1.0, 2.0).clip(value) for value in (0.0, 1.5, 9.0)] == [1.0, 1.5, 2.0]
