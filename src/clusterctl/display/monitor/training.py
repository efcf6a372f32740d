"""The training pane: progress and curves."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from rich.text import Text

from clusterctl.diagnosis.learning import not_learning
from clusterctl.display.braille import chart
from clusterctl.display.curves import drawn_curves
from clusterctl.display.monitor.texts import fitted
from clusterctl.display.plain import bar, compact, duration, share
from clusterctl.display.runs_table import note, stage_style
from clusterctl.observe.measurements import seconds_left
from clusterctl.runs.vocabulary import number, score_of

if TYPE_CHECKING:
    from clusterctl.display.curves import DrawnCurve
    from clusterctl.observe.overview import Selected

_STYLES = ("cyan", "green", "magenta", "yellow")
_LEAST_LINES = 6  # of a chart including its title
_LEAST_COLUMNS = 36


def training(selected: Selected, now: float, width: int, height: int) -> Text:
    """Two lines of facts, then as many charts as fit."""
    facts = _facts(selected, now, width)
    curves = drawn_curves(selected.history)
    if not curves:
        return fitted([*facts, Text("no metrics yet", "dim")], width, height)
    room = height - len(facts)
    across = max(1, min(len(curves), 2 if width >= 2 * _LEAST_COLUMNS + 2 else 1))
    down = max(1, min(-(-len(curves) // across), room // _LEAST_LINES))
    across = min(across, -(-len(curves) // down))
    rows = [
        _row(curves[first : first + across], first, width, room // down) for first in range(0, down * across, across)
    ]
    return fitted([*facts, *(line for row in rows for line in row.split("\n"))], width, height)


def _facts(selected: Selected, now: float, width: int) -> list[Text]:
    status, metrics = selected.status, selected.status.metrics
    scores = [score for split in ("val", "test") if (score := score_of(metrics, split))]
    first = Text.assemble((str(status.stage), stage_style(status.stage)))
    named = (
        ("epoch", share(metrics.get("epoch"), metrics.get("epochs"))),
        ("loss", number(metrics.get("loss"))),
        *((metric.label, metric.text(value)) for metric, value in scores),
        ("attempt", str(status.attempt.number) if status.attempt and len(status.attempts) > 1 else ""),
    )
    for name, text in named:
        if text:
            first.append(f"  {name} ", "dim").append(text)
    second = Text()
    step, steps = metrics.get("step"), metrics.get("steps")
    if step is not None and steps:
        second.append(bar(step / steps, min(24, width // 3)), "green").append(f" step {share(step, steps)}")
    pace = status.attempt.pace if status.attempt and not status.stage.ended else None
    if (left := seconds_left(metrics, pace, now)) is not None:
        second.append("  left ", "dim").append(duration(left))
    lesson = not_learning(status.attempt.course if status.attempt else None)
    idle = status.attempt is not None and status.attempt.idle_since is not None and not status.stage.ended
    third = Text(lesson.text if lesson else note(status) if idle else "", "bold red")
    return [line for line in (first, second, third) if line]


def _row(curves: list[DrawnCurve], first: int, width: int, height: int) -> Text:
    """Charts side by side across the whole width."""
    each = (width - 2 * (len(curves) - 1)) // len(curves)
    drawn = Text()
    for position, titled in enumerate(curves):
        style = _STYLES[(first + position) % len(_STYLES)]
        last = titled.curve.last
        title = Text.assemble((titled.title, "bold"), "  ", compact(last) if last is not None else "")
        title.truncate(each, overflow="ellipsis")
        one = Text("\n").join([title, chart(titled.curve.points(), each, max(1, height - 1), style)])
        drawn = _beside(drawn, one, position * (each + 2) - 2) if position else one
    return drawn


def _beside(left: Text, right: Text, left_width: int) -> Text:
    """Two texts side by side, two columns apart; `left` is padded to `left_width` columns."""
    rows = []
    for before, after in zip_longest(left.split("\n"), right.split("\n"), fillvalue=Text()):
        row = before.copy()
        row.set_length(left_width) if row.cell_len == len(row) else row.truncate(left_width, pad=True)
        rows.append(row.append("  ").append_text(after))
    return Text("\n").join(rows)
