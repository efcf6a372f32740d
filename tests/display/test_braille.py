"""Charts drawn in braille."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.display.curves import chart
from clusterctl.launcher.observe.history import Point

POINTS = st.lists(
    st.tuples(st.floats(0, 1e6), st.floats(-1e6, 1e6), st.floats(0, 10)).map(
        lambda drawn: Point(drawn[0], drawn[1] - drawn[2], drawn[1], drawn[1] + drawn[2])
    ),
    min_size=1,
    max_size=60,
    unique_by=lambda point: point.x,
).map(sorted)


@given(POINTS, st.integers(16, 120), st.integers(1, 30))
def test_a_chart_has_the_requested_size(points: list[Point], width: int, height: int) -> None:
    lines = chart(points, width, height).plain.split("\n")
    assert len(lines) == height
    assert {len(line) for line in lines} == {width}


def test_a_falling_line_goes_from_the_upper_left_to_the_lower_right() -> None:
    points = [Point(x, 10 - x, 10 - x, 10 - x) for x in range(11)]
    first, *_, last = chart(points, 30, 5).plain.split("\n")
    assert first.lstrip("10. ")[0] != "⠀"
    assert last[-1] != "⠀"
    assert first[-1] == "⠀"


def test_a_floor_belongs_to_the_scale_so_that_noise_is_not_blown_up() -> None:
    points = [Point(x, 52 + x % 3, 52 + x % 3, 52 + x % 3) for x in range(40)]
    first, *_, last = chart(points, 40, 9, floor=0.0).plain.split("\n")
    assert last.split()[0] == "0.0000"
    assert {*last[7:]} == {"⠀"}
    assert {*first[7:]} != {"⠀"}


def test_the_scale_names_the_extremes_of_the_band() -> None:
    drawn = chart([Point(0, 1, 2, 3), Point(9, 1, 2, 5)], 40, 4).plain
    assert "5.0000" in drawn
    assert "1.0000" in drawn


def test_the_band_is_drawn_apart_from_the_line() -> None:
    drawn = chart([Point(x, 0, 5 + x % 2, 10) for x in range(20)], 40, 6)
    assert {span.style for span in drawn.spans} >= {"cyan", "bright_black"}


def test_values_beyond_the_axis_are_marked_in_its_first_and_last_line() -> None:
    points = [Point(x, value, value, value) for x, value in enumerate([90.0, *[1.0, 2.0] * 30, -90.0])]
    first, *between, last = chart(points, 40, 6).plain.split("\n")
    assert first.lstrip(" 0123456789.").startswith("▲")
    assert last.endswith("▼")
    assert (first + last).count("▲") == (first + last).count("▼") == 1
    assert not any(mark in line for line in between for mark in "▲▼")
    assert "90" not in first + last


def test_a_chart_without_extreme_values_has_no_marks() -> None:
    drawn = chart([Point(x, x, x, x) for x in range(60)], 40, 6).plain
    assert "▲" not in drawn
    assert "▼" not in drawn
