"""How the training goes: where it stands, and its curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from clusterctl.display.braille import chart
from clusterctl.display.monitor.lines import beside, fitted
from clusterctl.display.monitor.run_rows import stage_style
from clusterctl.display.plain import duration, number, plain, share
from clusterctl.display.units import bar, compact
from clusterctl.observe.pace import seconds_left

if TYPE_CHECKING:
    from clusterctl.observe.curve import Curve
    from clusterctl.observe.history import History
    from clusterctl.observe.overview import Selected

_STYLES = ("cyan", "green", "magenta", "yellow")
_LEAST_LINES = 6  # of a chart with its title
_LEAST_COLUMNS = 36


class Titled(NamedTuple):
    """A curve and what it shows."""

    title: str
    curve: Curve


def training(selected: Selected, now: float, width: int, height: int) -> Text:
    """Two lines of facts, then as many charts as there is room for."""
    facts = _facts(selected, now, width)
    curves = chosen_curves(selected.history)
    if not curves:
        return fitted([*facts, Text("no numbers yet", "dim")], width, height)
    room = height - len(facts)
    across = max(1, min(len(curves), 2 if width >= 2 * _LEAST_COLUMNS + 2 else 1))
    down = max(1, min(-(-len(curves) // across), room // _LEAST_LINES))
    across = min(across, -(-len(curves) // down))
    rows = [
        _row(curves[first : first + across], first, width, room // down) for first in range(0, down * across, across)
    ]
    return fitted([*facts, *(line for row in rows for line in row.split("\n"))], width, height)


def chosen_curves(history: History) -> list[Titled]:
    """Loss, accuracy, throughput and the steps' time, then whatever else the program told, as far as there are any."""
    curves = history.curves
    chosen = [
        Titled("loss", curves["loss"]) if "loss" in curves else None,
        next(
            (Titled(name.replace("_", " "), curves[name]) for name in ("val_accuracy", "accuracy") if name in curves),
            None,
        ),
        next(
            (
                Titled(name.replace("_per_second", " per second"), curves[name])
                for name in ("nodes_per_second", "graphs_per_second", "steps_per_second")
                if name in curves
            ),
            None,
        ),
        Titled("seconds a step, all ranks", history.step_seconds) if history.step_seconds.points() else None,
    ]
    found = [titled for titled in chosen if titled is not None]
    shown = {id(titled.curve) for titled in found}
    others = [
        Titled(plain(name), curve) for name, curve in curves.items() if id(curve) not in shown and not _is_known(name)
    ]
    return [*found, *others]


def _is_known(name: str) -> bool:
    """Whether the name belongs to the step's split or to a throughput: it has its own pane, or its one chart."""
    split = ("seconds", "sampling", "gathering", "compute", "communication")
    return name in split or name.endswith(("_per_second", "_seconds", "_accuracy"))


def _facts(selected: Selected, now: float, width: int) -> list[Text]:
    status, metrics = selected.status, selected.status.metrics
    first = Text.assemble((str(status.stage), stage_style(status.stage)))
    named = (
        ("epoch", share(metrics.get("epoch"), metrics.get("epochs"))),
        ("loss", number(metrics.get("loss"))),
        ("val", number(metrics.get("val_accuracy"))),
        ("test", number(metrics.get("test_accuracy"))),
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
    loss = selected.history.curves.get("loss")
    if loss is not None and loss.broken and loss.first_broken is not None:
        second.append(f"  loss is no number since step {loss.first_broken:.0f}", "bold red")
    return [first, second] if second else [first]


def _row(curves: list[Titled], first: int, width: int, height: int) -> Text:
    """Charts side by side, over the whole width."""
    each = (width - 2 * (len(curves) - 1)) // len(curves)
    drawn = Text()
    for position, titled in enumerate(curves):
        style = _STYLES[(first + position) % len(_STYLES)]
        last = titled.curve.last
        title = Text.assemble((titled.title, "bold"), "  ", compact(last) if last is not None else "")
        title.truncate(each, overflow="ellipsis")
        one = Text("\n").join([title, chart(titled.curve.points(), each, max(1, height - 1), style)])
        drawn = beside(drawn, one, position * (each + 2) - 2) if position else one
    return drawn
