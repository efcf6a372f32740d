"""Curves of any length in bounded memory."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.observe.history import Curve, Point, thinned

NUMBERS = st.floats(-1e9, 1e9)
PAIRS = st.lists(st.tuples(st.floats(0, 1e7), NUMBERS), min_size=1, max_size=300)


@given(PAIRS, st.integers(2, 50))
def test_a_curve_keeps_its_number_of_buckets_and_all_extremes(pairs: list[tuple[float, float]], most: int) -> None:
    curve = Curve(most)
    for x, value in pairs:
        curve.add(x, value)
    points = curve.points()
    assert len(points) <= most
    assert min(point.low for point in points) == min(value for _, value in pairs)
    assert max(point.high for point in points) == max(value for _, value in pairs) == curve.highest()
    assert [point.x for point in points] == sorted(point.x for point in points)


@given(PAIRS)
def test_the_order_of_the_values_does_not_matter(pairs: list[tuple[float, float]]) -> None:
    forwards, backwards = Curve(20), Curve(20)
    for x, value in pairs:
        forwards.add(x, value)
    for x, value in reversed(pairs):
        backwards.add(x, value)
    one, other = forwards.points(), backwards.points()
    assert [(point.low, point.high) for point in one] == [(point.low, point.high) for point in other]


def test_a_million_steps_use_no_more_buckets_than_a_few_hundred() -> None:
    curve = Curve(100)
    for step in range(0, 1_000_000, 50):
        curve.add(step, step)
    points = curve.points()
    assert 50 < len(points) <= 100
    assert all(abs(point.mean - point.x) < 1 for point in points)


def test_non_finite_values_are_counted_with_the_position_of_the_first() -> None:
    curve = Curve()
    for step, value in enumerate([1.0, math.nan, 2.0, math.inf]):
        curve.add(step, value)
    assert (curve.broken, curve.first_broken) == (2, 1)
    assert [point.mean for point in curve.points()] == [1.0, 2.0]
    curve.add(math.nan, 1.0)
    curve.add(9, 10**400)
    assert len(curve.points()) == 2


def test_a_cut_drops_values_from_there_on() -> None:
    curve = Curve()
    for step in range(10):
        curve.add(step, math.nan if step == 8 else float(step))
    curve.cut(6)
    assert [point.x for point in curve.points()] == [0, 1, 2, 3, 4, 5]
    assert curve.broken == 0


def test_the_mean_weights_all_parts_of_the_axis_equally() -> None:
    curve = Curve()
    for _ in range(99):
        curve.add(0, 0.0)
    curve.add(1, 10.0)
    assert curve.mean() == 5.0
    assert Curve().mean() is None


@given(PAIRS, st.integers(1, 20))
def test_thinned_points_keep_the_extremes(pairs: list[tuple[float, float]], most: int) -> None:
    points = [Point(x, value, value, value) for x, value in sorted(pairs)]
    fewer = thinned(points, most)
    assert len(fewer) <= max(most, 1)
    assert min(point.low for point in fewer) == min(value for _, value in pairs)
    assert max(point.high for point in fewer) == max(value for _, value in pairs)


def test_values_whose_sums_overflow_count_as_infinite() -> None:
    curve = Curve()
    for x, value in enumerate((1e308, -1e308, 1.0)):
        curve.add(x, value)
    assert (curve.broken, [point.mean for point in curve.points()]) == (2, [1.0])
