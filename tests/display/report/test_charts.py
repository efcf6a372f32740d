"""Charts as SVG."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.display.curves import Bounds, robust
from clusterctl.launcher.display.report.charts import (
    HEIGHT,
    WIDTH,
    PhasesRow,
    Piece,
    RunLine,
    line_chart,
    several_lines,
    shares,
    ticks,
    waterfall,
)
from clusterctl.launcher.observe.history import Point
from clusterctl.shared.record.states import State

POINTS = st.lists(
    st.tuples(st.floats(0, 1e6), st.floats(-1e6, 1e6)).map(lambda xy: Point(xy[0], xy[1], xy[1], xy[1] + 1)),
    min_size=1,
    max_size=40,
    unique_by=lambda point: point.x,
).map(sorted)


@given(POINTS)
def test_a_chart_is_well_formed_and_stays_in_its_frame(points: list[Point]) -> None:
    svg = line_chart(points, 'loss "of" <all>', bounds=robust(points))
    ElementTree.fromstring(svg)
    for places in re.findall(r'points="([^"]*)"', svg):
        for place in places.split():
            x, y = map(float, place.split(","))
            assert 0 <= x <= WIDTH
            assert -0.1 <= y <= HEIGHT


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_are_few_and_enclose_the_values(low: float, length: float) -> None:
    marked = ticks(low, low + length)
    assert 2 <= len(marked) <= 8
    assert marked[0] <= low + 1e-6 * abs(low) + 1e-9 * length
    assert marked[-1] >= low + length - 1e-6 * abs(low + length)


@pytest.mark.parametrize(("steps", "labels"), [([40], ["step 40"]), ([1, 40], ["step 1", "step 40"])])
def test_a_chart_of_a_single_step_names_it_once(steps: list[int], labels: list[str]) -> None:
    svg = line_chart([Point(x, 1, 1, 2) for x in steps], "one", x_text=lambda x: f"step {x:.0f}")
    assert re.findall(r"step \d+", svg) == labels


def test_a_value_that_never_changes_is_a_line_too() -> None:
    assert "polyline" in line_chart([Point(x, 1, 1, 1) for x in range(5)], "flat")


def test_values_beyond_the_axis_are_marked_with_their_value() -> None:
    points = [Point(x, value, value, value) for x, value in enumerate([90.0, *[1.0, 2.0] * 30, -90.0])]
    svg = ElementTree.fromstring(line_chart(points, "loss", bounds=robust(points)))
    marks = [part for part in svg.findall("polygon") if part.get("class") == "outside"]
    assert [mark.findtext("title") for mark in marks] == ["90", "-90"]
    assert "outside" not in line_chart(points, "loss")


def test_restarts_within_the_axis_are_marked() -> None:
    svg = line_chart([Point(x, x, x, x) for x in range(10)], "loss", marks=[4, 99])
    assert svg.count('class="mark"') == 1


def test_the_waterfall_has_a_row_per_attempt_and_a_piece_per_phase() -> None:
    rows = [
        PhasesRow("attempt 0", [Piece(State.QUEUED, 0, 30), Piece(State.TRAINING, 30, 90)]),
        PhasesRow("attempt 1", [Piece(State.TRAINING, 100, 200)]),
    ]
    svg = ElementTree.fromstring(waterfall(rows, "phases"))
    pieces = svg.findall("rect")
    assert [piece.get("class") for piece in pieces] == ["state-queued", "state-training", "state-training"]
    assert pieces[0].findtext("title") == "queued: 30s"
    widths = [float(piece.get("width", "0")) for piece in pieces]
    assert widths[1] == pytest.approx(2 * widths[0], rel=1e-2)


def test_shares_fill_the_bar() -> None:
    svg = ElementTree.fromstring(shares({"sampling": 1.0, "compute": 3.0}, "parts"))
    widths = [float(rect.get("width", "0")) for rect in svg.findall("rect")]
    assert sum(widths) == pytest.approx(2 * WIDTH)
    assert widths[1] == 3 * widths[0]


def test_values_that_differ_by_less_than_any_power_of_ten_are_one_tick() -> None:
    assert ticks(-5e-324, 5e-324) == [-5e-324]


def test_several_lines_share_their_axes_and_the_first_is_on_top() -> None:
    lines = [
        RunLine(name, f"run-{name}", [Point(x, y, y, y) for x, y in points])
        for name, points in (("0", [(0, 1), (10, 2)]), ("1", [(5, 1)]), ("2", [(0, 1), (10, 99)]))
    ]
    svg = ElementTree.fromstring(several_lines(lines, "loss", bounds=Bounds(1, 2)))
    assert [(group.findtext("title"), group.get("class")) for group in svg.findall("g")] == [
        ("2", "run-2 clipped"),
        ("1", "run-1"),
        ("0", "run-0"),
    ]
    beyond, dot, first = svg.findall("g")
    assert beyond.find("polyline").get("points") == first.find("polyline").get("points")
    assert float(dot.find("circle").get("cx")) == pytest.approx((56 + WIDTH - 10) / 2)
