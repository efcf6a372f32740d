"""Parallel coordinates: an axis per setting and one for the metric, and a line per run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.display.report.charts import WIDTH, svg
from clusterctl.display.report.markup import tag
from clusterctl.display.report.outcomes import shade
from clusterctl.display.report.scale import scale_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.display.report.markup import Markup
    from clusterctl.display.report.outcomes import ScoredSettings
    from clusterctl.runs.vocabulary import Metric

MOST_AXES = 8  # of settings
_WIDTH, _HEIGHT = 2 * WIDTH, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 16, 84, 34, 14
_LETTER = 6.6  # approximate width of a letter
_MANY = 100  # lines: if there are more, they are drawn thin


def parallel_coordinates(outcomes: Sequence[ScoredSettings], keys: Sequence[str], metric: Metric) -> Markup:
    """`outcomes` are ordered from the best, which is drawn last and thickest."""
    scales = [scale_of(outcome.settings.get(key, "") for outcome in outcomes) for key in keys]
    scales.append(scale_of((str(outcome.value) for outcome in outcomes), named=1))
    gap = (_WIDTH - _LEFT - _RIGHT) / len(keys)
    lines = []
    for rank, outcome in enumerate(outcomes):
        texts = [*(outcome.settings.get(key, "") for key in keys), str(outcome.value)]
        corners = " ".join(
            f"{_LEFT + index * gap:.1f},{_y(scale.places[text]):.1f}"
            for index, (scale, text) in enumerate(zip(scales, texts, strict=True))
        )
        classes = f"line {shade(rank, len(outcomes))}{' best' * (rank == 0)}"
        lines.append(tag("polyline", tag("title", outcome.text(metric)), points=corners, class_=classes))
    axes = []
    for index, (title, scale) in enumerate(zip([*keys, metric.label], scales, strict=True)):
        x = _LEFT + index * gap
        room = gap if index < len(keys) else _RIGHT + _LEFT
        axes.append(tag("line", x1=x, x2=x, y1=_TOP, y2=_HEIGHT - _BOTTOM, class_="axis-line"))
        axes.append(tag("text", tag("title", title), shortened(title, room - 8), x=x - 8, y=16, class_="name"))
        axes += [
            tag("text", shortened(text or "not set", room - 12), x=x + 6, y=_y(place) + 4, class_="axis halo")
            for place, text in scale.labels
        ]
    style = "many" if len(lines) > _MANY else None
    drawn = [tag("g", *lines[::-1], class_=style), *axes]
    return svg(_WIDTH, _HEIGHT, f"settings and {metric.label} of each run", drawn)


def shortened(text: str, room: float) -> str:
    """`text`, cut to `room`; its end is kept, since keys share their beginnings."""
    most = max(3, int(room / _LETTER))
    return text if len(text) <= most else f"…{text[1 - most :]}"


def _y(place: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - place)
