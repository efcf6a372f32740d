"""A heat map: the best value of a metric for each pair of values of two settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.display.report.charts import WIDTH, svg
from clusterctl.display.report.markup import tag
from clusterctl.display.report.outcomes import shade
from clusterctl.display.report.parallel import shortened
from clusterctl.display.report.scale import ordered

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from clusterctl.display.report.markup import Markup
    from clusterctl.display.report.outcomes import ScoredSettings
    from clusterctl.runs.vocabulary import Metric

_MOST_VALUES = 24
_LEFT, _TOP, _BOTTOM, _ROW = 150, 24, 26, 30
_WIDEST, _NARROWEST = 110, 46  # cell widths; narrower cells have no text


def is_grid(settings: Iterable[Mapping[str, str]], keys: Sequence[str]) -> bool:
    """Whether exactly two keys vary, with a run for every pair of values."""
    if len(keys) != 2:
        return False
    pairs = {(one.get(keys[0], ""), one.get(keys[1], "")) for one in settings}
    first, second = ({pair[side] for pair in pairs} for side in (0, 1))
    return len(pairs) == len(first) * len(second) and max(len(first), len(second)) <= _MOST_VALUES


def heat_map(outcomes: Sequence[ScoredSettings], keys: Sequence[str], metric: Metric) -> Markup:
    """`outcomes` are ordered from the best. The key with more values is horizontal."""
    down, right = sorted(keys, key=lambda key: len({outcome.settings.get(key, "") for outcome in outcomes}))
    rows, columns = (ordered(outcome.settings.get(key, "") for outcome in outcomes) for key in (down, right))
    width = min(_WIDEST, (2 * WIDTH - _LEFT) / len(columns))
    drawn = [tag("text", tag("title", down), shortened(down, _LEFT - 10), x=0, y=14, class_="name")]
    best: dict[tuple[str, str], tuple[int, ScoredSettings]] = {}
    for rank, outcome in enumerate(outcomes):
        best.setdefault((outcome.settings.get(down, ""), outcome.settings.get(right, "")), (rank, outcome))
    for (row, column), (rank, outcome) in best.items():
        x, y = _LEFT + columns.index(column) * width, _TOP + rows.index(row) * _ROW
        style = f"cell {shade(rank, len(outcomes))}{' best' * (rank == 0)}"
        shape = tag("rect", x=x + 1, y=y + 1, width=width - 2, height=_ROW - 2, class_=style)
        text = [tag("text", metric.text(outcome.value), x=x + width / 2, y=y + 19, class_="middle")]
        drawn.append(tag("g", tag("title", outcome.text(metric)), shape, *(text if width >= _NARROWEST else [])))
    for index, value in enumerate(rows):
        y = _TOP + index * _ROW + 19
        drawn.append(tag("text", shortened(value or "not set", _LEFT - 10), x=_LEFT - 8, y=y, class_="end"))
    bottom = _TOP + len(rows) * _ROW
    for index, value in enumerate(columns):
        x = _LEFT + (index + 0.5) * width
        drawn.append(tag("text", shortened(value or "not set", width), x=x, y=bottom + 14, class_="middle"))
    end = _LEFT + len(columns) * width
    drawn.append(tag("text", tag("title", right), shortened(right, end - _LEFT), x=_LEFT, y=14, class_="name"))
    return svg(2 * WIDTH, bottom + _BOTTOM, f"best {metric.label} by {down} and {right}", drawn)
