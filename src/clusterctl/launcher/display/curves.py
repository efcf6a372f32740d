"""Which curves of a run are drawn, in which order and on which axis; and `chart`, which draws one as braille text.

Shared by the monitor and the report.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from clusterctl.launcher.display.plain import compact, plain
from clusterctl.launcher.observe.history import thinned
from clusterctl.shared.record.metrics import KNOWN, Better, Metric, Role, is_other_score, metric_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.launcher.observe.history import Curve, History, Point


_FEW_POINTS = 20  # with fewer, no value is treated as extreme
_TRIMMED = 0.05  # share of the points trimmed at each end
_REACH = 0.5  # how far the axis may extend beyond the trimmed range, as a share of it
_LEAST_SPAN = 0.05  # of an axis, as a share of the largest value: a shorter one would enlarge noise
_FLAT = 1e-3  # share of its largest value by which a curve may vary and still be shown as one number


@dataclass(frozen=True)
class DrawnCurve:
    """A curve and its title. `over_time`: x is in seconds since the epoch, not steps. `floor` belongs on the axis."""

    title: str
    curve: Curve
    better: Better = Better.NEITHER
    over_time: bool = False
    floor: float | None = None

    @property
    def best(self) -> float | None:
        """The best value; None if neither direction is better."""
        values = [value for point in self.curve.points() for value in (point.low, point.high)]
        chosen = {Better.HIGHER: max, Better.LOWER: min}.get(self.better)
        return chosen(values) if chosen and values else None


def drawn_curves(history: History) -> list[DrawnCurve]:
    """Known metrics in the vocabulary's order (loss, scores), one throughput, the step time, then all others."""
    metrics = [metric_of(name) for name in history.curves]
    curves = [metric for metric in metrics if metric.role is Role.CURVE]
    known = sorted((metric for metric in curves if _is_known(metric)), key=_place)
    rates = sorted((metric for metric in metrics if metric.role is Role.RATE), key=_place)
    others = [metric for metric in curves if not _is_known(metric)]

    def drawn(chosen: Sequence[Metric]) -> list[DrawnCurve]:
        return [
            DrawnCurve(
                plain(metric.label),
                history.curves[metric.name],
                metric.better,
                floor=0.0 if metric.role is Role.RATE else None,
            )
            for metric in chosen
        ]

    times = [DrawnCurve("seconds per step, all ranks", history.step_seconds, over_time=True, floor=0.0)]
    return [*drawn([*known, *rates[:1]]), *(times if history.step_seconds.points() else []), *drawn(others)]


def _is_known(metric: Metric) -> bool:
    return metric.name in KNOWN or is_other_score(metric.name)


def _place(metric: Metric) -> int:
    """The metric's position in the vocabulary, a score's that of the accuracy; a program's own metrics come first."""
    name = "val_accuracy" if is_other_score(metric.name) else metric.name
    return list(KNOWN).index(name) if name in KNOWN else -1


class Bounds(NamedTuple):
    """The ends of a value axis."""

    low: float
    high: float

    def clip(self, value: float) -> float:
        """`value`, limited to the axis."""
        return min(self.high, max(self.low, value))


def whole(points: Sequence[Point]) -> Bounds:
    """An axis that covers all values."""
    return Bounds(min(point.low for point in points), max(point.high for point in points))


def is_flat(points: Sequence[Point]) -> bool:
    """Whether a curve is all but constant, such as a learning rate that no schedule changes."""
    low, high = whole(points)
    return len(points) > 1 and high - low <= _FLAT * max(abs(low), abs(high))


def robust(points: Sequence[Point]) -> Bounds:
    """An axis that covers all values except extreme ones, such as the loss of the first steps or a single spike.

    A value is extreme if it lies outside the trimmed range (without 5 % of the points at each end) by more than half
    of that range, where the axis then ends. Short and constant curves are shown whole. An axis covers at least a
    twentieth of its largest value: noise must not look like a development.
    """
    bounds = whole(points)
    if len(points) >= _FEW_POINTS:
        cut = max(1, int(_TRIMMED * len(points)))
        low = sorted(point.low for point in points)[cut]
        high = sorted(point.high for point in points)[-cut - 1]
        if high > low:
            reach = _REACH * (high - low)
            bounds = Bounds(max(bounds.low, low - reach), min(bounds.high, high + reach))
    missing = _LEAST_SPAN * max(abs(bounds.low), abs(bounds.high)) - (bounds.high - bounds.low)
    if not bounds.high > bounds.low or not missing > 0:
        return bounds
    return Bounds(bounds.low - missing / 2, bounds.high + missing / 2)


# Line charts as braille text: two by four dots per character, the band between low and high lightly shaded.


_BLANK = 0x2800
_ABOVE, _BELOW, _MARK_STYLE = "▲", "▼", "yellow"
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # by column, then by row from the top


def chart(
    points: Sequence[Point],
    width: int,
    height: int,
    style: str = "cyan",
    *,
    floor: float | None = None,
) -> Text:
    """`points` in `height` lines of `width` characters: a scale on the left, the mean as a line, its band behind it.

    Values outside the scale are marked by `▲` on the first line and `▼` on the last. The scale includes `floor`.
    """
    if not points or height < 1 or width < 16:
        return Text("no values yet" if not points else "", "dim")
    bounds = robust(points)
    bounds = bounds if floor is None else Bounds(min(bounds.low, floor), bounds.high)
    scale = [compact(bounds.high), *[""] * (height - 2), compact(bounds.low)] if height > 1 else [compact(bounds.high)]
    margin = max(map(len, scale)) + 1
    columns = width - margin
    lines, band, marks = _grids(thinned(points, columns), columns, height, bounds)
    text = Text()
    for row in range(height):
        text.append(scale[row].rjust(margin - 1) + " ", "dim")
        run, run_style = "", style  # characters of one colour: as few changes as possible
        for dots, shade, mark in zip(lines[row], band[row], marks[row], strict=True):
            here = _MARK_STYLE if mark else style if dots else "bright_black" if shade else run_style
            if here != run_style:
                text.append(run, run_style)
                run, run_style = "", here
            run += mark or chr(_BLANK + (dots or shade))
        text.append(run, run_style)
        if row < height - 1:
            text.append("\n")
    return text


_Grid = list[list[int]]


def _grids(points: Sequence[Point], columns: int, height: int, bounds: Bounds) -> tuple[_Grid, _Grid, list[list[str]]]:
    """The dots of the line and of the band, and the marks for values outside `bounds`, row by row."""
    first, last = points[0].x, points[-1].x
    low, high = bounds
    width, rows = 2 * columns - 1, 4 * height - 1

    def column(x: float) -> int:
        return min(width, max(0, round((x - first) / (last - first) * width))) if last > first else 0

    def row(value: float) -> int:
        return rows - round((bounds.clip(value) - low) / (high - low) * rows) if high > low else rows // 2

    lines: _Grid = [[0] * columns for _ in range(height)]
    band: _Grid = [[0] * columns for _ in range(height)]
    marks = [[""] * columns for _ in range(height)]
    for point in points:
        if point.high > high:
            marks[0][column(point.x) // 2] = _ABOVE
        if point.low < low:
            marks[-1][column(point.x) // 2] = _BELOW
    places = [(column(point.x), row(point.high), row(point.mean), row(point.low)) for point in points]
    for (x0, top0, y0, bottom0), (x1, top1, y1, bottom1) in pairwise([places[0], *places]):
        for x in range(x0, x1 + 1):  # the band is interpolated between two points, too
            there = (x - x0) / (x1 - x0) if x1 > x0 else 1.0
            top, bottom = round(top0 + (top1 - top0) * there), round(bottom0 + (bottom1 - bottom0) * there)
            for filled in range(top + (x + top) % 2, bottom + 1, 2):  # every other dot: a shade
                _dot(band, x, filled)
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        for i in range(steps + 1):
            _dot(lines, round(x0 + (x1 - x0) * i / steps), round(y0 + (y1 - y0) * i / steps))
    return lines, band, marks


def _dot(grid: _Grid, x: int, y: int) -> None:
    grid[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
