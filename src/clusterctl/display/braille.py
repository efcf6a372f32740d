"""Line charts as braille text: two by four dots per character, the band between low and high lightly shaded."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from rich.text import Text

from clusterctl.display.curves import robust
from clusterctl.display.plain import compact
from clusterctl.observe.curve import thinned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.display.curves import Bounds
    from clusterctl.observe.curve import Point

_BLANK = 0x2800
_ABOVE, _BELOW, _MARK_STYLE = "▲", "▼", "yellow"
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # by column, then by row from the top


def chart(
    points: Sequence[Point], width: int, height: int, style: str = "cyan", *, span: tuple[float, float] | None = None
) -> Text:
    """`points` in `height` lines of `width` characters: a scale on the left, the mean as a line, its band behind it.

    Values outside the scale are marked by `▲` on the first line and `▼` on the last.
    `span` is the range of x; default: that of the points.
    """
    if not points or height < 1 or width < 16:
        return Text("no values yet" if not points else "", "dim")
    bounds = robust(points)
    scale = [compact(bounds.high), *[""] * (height - 2), compact(bounds.low)] if height > 1 else [compact(bounds.high)]
    margin = max(map(len, scale)) + 1
    columns = width - margin
    lines, band, marks = _grids(thinned(points, columns), columns, height, bounds, span)
    text = Text()
    for row in range(height):
        text.append(scale[row].rjust(margin - 1) + " ", "dim")
        _append_row(text, lines[row], band[row], marks[row], style)
        if row < height - 1:
            text.append("\n")
    return text


_Grid = list[list[int]]


def _grids(
    points: Sequence[Point], columns: int, height: int, bounds: Bounds, span: tuple[float, float] | None
) -> tuple[_Grid, _Grid, list[list[str]]]:
    """The dots of the line and of the band, and the marks for values outside `bounds`, row by row."""
    first, last = span or (points[0].x, points[-1].x)
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


def _append_row(text: Text, line: list[int], band: list[int], marks: list[str], style: str) -> None:
    """Append one row, with as few changes of colour as possible."""
    run, run_style = "", style
    for dots, shade, mark in zip(line, band, marks, strict=True):
        here = _MARK_STYLE if mark else style if dots else "bright_black" if shade else run_style
        if here != run_style:
            text.append(run, run_style)
            run, run_style = "", here
        run += mark or chr(_BLANK + (dots or shade))
    text.append(run, run_style)
