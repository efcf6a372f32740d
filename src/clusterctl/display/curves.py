"""Which curves of a run are drawn, in which order and on which axis: the same in the monitor and the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.display.plain import plain
from clusterctl.runs.vocabulary import KNOWN, Better, Metric, Role, metric_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.observe.curve import Curve, Point
    from clusterctl.observe.history import History

_FEW_POINTS = 20  # among fewer, no value is called extreme
_TRIMMED = 0.05  # of the points, at each end
_REACH = 0.5  # of the trimmed range: how far beyond it the axis may go


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


class Bounds(NamedTuple):
    """The ends of a value axis."""

    low: float
    high: float

    def clip(self, value: float) -> float:
        """`value`, or the end of the axis beyond which it lies."""
        return min(self.high, max(self.low, value))


def whole(points: Sequence[Point]) -> Bounds:
    """An axis that holds all values."""
    return Bounds(min(point.low for point in points), max(point.high for point in points))


def robust(points: Sequence[Point]) -> Bounds:
    """An axis that holds all values but extreme ones, such as the loss of the first steps or a single spike.

    A value is extreme if it lies beyond the range of the others (the points without 5 % of them at each end) by more
    than half of that range. The axis then ends there. Short and constant curves are shown whole.
    """
    least, most = whole(points)
    if len(points) < _FEW_POINTS:
        return Bounds(least, most)
    cut = max(1, int(_TRIMMED * len(points)))
    low = sorted(point.low for point in points)[cut]
    high = sorted(point.high for point in points)[-cut - 1]
    if not high > low:
        return Bounds(least, most)
    reach = _REACH * (high - low)
    return Bounds(max(least, low - reach), min(most, high + reach))
