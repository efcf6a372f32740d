"""SVG charts: lines with bands, a waterfall of phases, bars. Colours are CSS classes, for light and dark mode."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.launcher.display.curves import Bounds, whole
from clusterctl.launcher.display.plain import compact, duration
from clusterctl.launcher.display.report.markup import Markup, join, tag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from clusterctl.launcher.observe.history import Point
    from clusterctl.shared.record.states import State

WIDTH, HEIGHT = 440, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 10, 10, 24
_ROW = 24


def line_chart(
    points: Sequence[Point],
    label: str,
    *,
    bounds: Bounds | None = None,
    marks: Sequence[float] = (),
    x_text: Callable[[float], str] = lambda x: f"{x:.0f}",
    floor: float | None = None,
    ceiling: float | None = None,
) -> Markup:
    """The mean of `points` as a line, the band from low to high behind it, dashed lines at `marks` on the x axis.

    `label` is for screen readers. The scale covers `bounds` (None: all values), `floor` and `ceiling`; triangles mark
    values outside it.
    """
    low, high = bounds or whole(points)
    low = low if floor is None else min(low, floor)
    high = high if ceiling is None else max(high, ceiling)
    first, last = points[0].x, points[-1].x
    frame = _Frame.around(first, last, low, high)
    drawn = frame.drawn(x_text)
    band = [(point.x, point.high) for point in points] + [(point.x, point.low) for point in reversed(points)]
    if any(point.high > point.low for point in points):
        drawn.append(tag("polygon", points=frame.places(band), class_="band"))
    drawn.append(_curve(points, frame))
    drawn += _outside(points, frame)
    drawn += [
        tag("line", x1=frame.x_of(mark), x2=frame.x_of(mark), y1=_TOP, y2=HEIGHT - _BOTTOM, class_="mark")
        for mark in marks
        if first <= mark <= last
    ]
    return svg(WIDTH, HEIGHT, label, drawn)


class RunLine(NamedTuple):
    """One of several lines in a chart: its name, shown as a tooltip, the CSS class of its colour, its opacity."""

    name: str
    style: str
    points: Sequence[Point]
    opacity: float | None = None


def several_lines(lines: Sequence[RunLine], label: str, *, bounds: Bounds) -> Markup:
    """The means of several lines over the steps, the first on top. Values beyond the axis are drawn at its edge."""
    places = [point.x for line in lines for point in line.points]
    frame = _Frame.around(min(places), max(places), *bounds)
    drawn = []
    for line in lines:
        clipped = any(point.mean != frame.values.clip(point.mean) for point in line.points)
        style = f"{line.style}{' clipped' * clipped}"
        opacity = {"stroke_opacity": line.opacity, "fill_opacity": line.opacity}
        drawn.append(tag("g", tag("title", line.name), _curve(line.points, frame), class_=style, **opacity))
    return svg(WIDTH, HEIGHT, label, [*frame.drawn(lambda x: f"step {x:.0f}"), *reversed(drawn)])


class _Frame(NamedTuple):
    """The coordinate system of a chart."""

    first: float
    last: float
    values: Bounds
    ticks: Sequence[float]

    @classmethod
    def around(cls, first: float, last: float, low: float, high: float) -> _Frame:
        marked = ticks(low, high)
        return cls(first, last, Bounds(min(low, marked[0]), max(high, marked[-1])), marked)

    def x_of(self, x: float) -> float:
        length = self.last - self.first
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * ((x - self.first) / length if length > 0 else 0.5)

    def y_of(self, value: float) -> float:
        low, high = self.values
        height = HEIGHT - _TOP - _BOTTOM
        return _TOP + height * ((high - self.values.clip(value)) / (high - low) if high > low else 0.5)

    def places(self, pairs: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{self.x_of(x):.1f},{self.y_of(y):.1f}" for x, y in pairs)

    def drawn(self, x_text: Callable[[float], str]) -> list[Markup]:
        """The grid and its labels."""
        drawn = []
        for tick in self.ticks:
            y = self.y_of(tick)
            drawn.append(tag("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=y, y2=y, class_="grid"))
            drawn.append(tag("text", tick_text(tick), x=_LEFT - 6, y=y + 4, class_="axis end"))
        if self.first == self.last:
            place = {"x": self.x_of(self.first), "y": HEIGHT - 6}
            return [*drawn, tag("text", x_text(self.first), **place, class_="axis middle")]
        return [
            *drawn,
            tag("text", x_text(self.first), x=_LEFT, y=HEIGHT - 6, class_="axis"),
            tag("text", x_text(self.last), x=WIDTH - _RIGHT, y=HEIGHT - 6, class_="axis end"),
        ]


def _curve(points: Sequence[Point], frame: _Frame) -> Markup:
    """The means as a line, or a single one as a dot."""
    if len(points) == 1:
        (point,) = points
        return tag("circle", cx=frame.x_of(point.x), cy=frame.y_of(point.mean), r=3, class_="dot")
    return tag("polyline", points=frame.places([(point.x, point.mean) for point in points]), class_="line")


def _outside(points: Sequence[Point], frame: _Frame) -> Iterator[Markup]:
    """A triangle at the end of the axis for each value beyond it, with the value as a tooltip."""
    for point in points:
        x = frame.x_of(point.x)
        for value, beyond, tip in (
            (point.high, point.high > frame.values.high, _TOP - 3),
            (point.low, point.low < frame.values.low, HEIGHT - _BOTTOM + 3),
        ):
            if beyond:
                base = tip + 8 if tip < _TOP else tip - 8
                corners = f"{x - 4:.1f},{base} {x + 4:.1f},{base} {x:.1f},{tip}"
                yield tag("polygon", tag("title", compact(value)), points=corners, class_="outside")


class Piece(NamedTuple):
    state: State
    start: float
    end: float


class PhasesRow(NamedTuple):
    name: str
    pieces: Sequence[Piece]


def waterfall(rows: Sequence[PhasesRow], label: str) -> Markup:
    """One line per attempt, with its phases in colour along a common time axis."""
    width, left = 2 * WIDTH, 90
    start = min(piece.start for row in rows for piece in row.pieces)
    end = max(piece.end for row in rows for piece in row.pieces)
    scale = (width - left - _RIGHT) / max(1e-9, end - start)
    drawn = []
    for index, row in enumerate(rows):
        y = index * _ROW
        drawn.append(tag("text", row.name, x=0, y=y + 15, class_="name"))
        for piece in row.pieces:
            what = tag("title", f"{piece.state}: {duration(piece.end - piece.start)}")
            x, length = left + (piece.start - start) * scale, (piece.end - piece.start) * scale
            shape = {"x": x, "y": y + 3, "width": max(0.5, length), "height": _ROW - 8}
            drawn.append(tag("rect", what, class_=f"state-{piece.state}", **shape))
    bottom = len(rows) * _ROW + 14
    drawn += [
        tag("text", "0s", x=left, y=bottom, class_="axis"),
        tag("text", duration(end - start), x=width - _RIGHT, y=bottom, class_="axis end"),
    ]
    return svg(width, bottom + 6, label, drawn)


def shares(parts: dict[str, float], label: str) -> Markup:
    """One bar divided in proportion to `parts`; the caller adds a legend."""
    whole, x, drawn = sum(parts.values()), 0.0, []
    for index, (name, value) in enumerate(parts.items()):
        width = 2 * WIDTH * value / whole
        drawn.append(tag("rect", tag("title", name), x=x, y=0, width=width, height=18, class_=f"part-{index % 6}"))
        x += width
    return svg(2 * WIDTH, 18, label, drawn)


def svg(width: int, height: int, label: str, drawn: list[Markup]) -> Markup:
    """A scalable drawing; `label` is for screen readers."""
    return tag("svg", join(drawn), viewBox=f"0 0 {width} {height}", role="img", aria_label=label)


def tick_text(value: float) -> str:
    """The label of a tick, without trailing zeros."""
    text = compact(value)
    return text.rstrip("0").rstrip(".") if "." in text and text[-1].isdigit() and "e" not in text else text


def ticks(low: float, high: float) -> list[float]:
    """Round numbers that enclose `low` and `high`, about four of them."""
    rough = (high - low) / 4
    if not rough > sys.float_info.min:  # equal, or so close that no power of ten lies between
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [index * step for index in range(first, last + 1)]
