"""Which curves of a run are drawn, and in which order: the same in the monitor and the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.display.plain import plain
from clusterctl.runs.vocabulary import KNOWN, Better, Metric, Role, metric_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.observe.curve import Curve
    from clusterctl.observe.history import History


@dataclass(frozen=True)
class DrawnCurve:
    """A curve and its title. `over_time`: its x are seconds since the epoch, not steps."""

    title: str
    curve: Curve
    better: Better = Better.NEITHER
    over_time: bool = False

    @property
    def best(self) -> float | None:
        """The best value; None where no direction is better."""
        values = [value for point in self.curve.points() for value in (point.low, point.high)]
        chosen = {Better.HIGHER: max, Better.LOWER: min}.get(self.better)
        return chosen(values) if chosen and values else None


def drawn_curves(history: History) -> list[DrawnCurve]:
    """The known metrics in the vocabulary's order (loss, scores), one throughput, the steps' time, then all others."""
    metrics = [metric_of(name) for name in history.curves]
    curves = [metric for metric in metrics if metric.role is Role.CURVE]
    known = sorted((metric for metric in curves if metric.name in KNOWN), key=_place)
    rates = sorted((metric for metric in metrics if metric.role is Role.RATE), key=_place)
    others = [metric for metric in curves if metric.name not in KNOWN]

    def drawn(chosen: Sequence[Metric]) -> list[DrawnCurve]:
        return [DrawnCurve(plain(metric.label), history.curves[metric.name], metric.better) for metric in chosen]

    times = [DrawnCurve("seconds a step, all ranks", history.step_seconds, over_time=True)]
    return [*drawn([*known, *rates[:1]]), *(times if history.step_seconds.points() else []), *drawn(others)]


def _place(metric: Metric) -> int:
    """Its place in the vocabulary; what a program logs of its own comes first."""
    return list(KNOWN).index(metric.name) if metric.name in KNOWN else -1
