"""Which curves of a run are drawn, in which order and on which axis; shared by the monitor and the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.display.plain import plain
from clusterctl.runs.vocabulary import KNOWN, Better, Metric, Role, metric_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.observe.curve import Curve, Point
    from clusterctl.observe.history import History

_FEW_POINTS = 20  # with fewer, no value is treated as extreme
_TRIMMED = 0.05  # share of the points trimmed at each end
_REACH = 0.5  # how far the axis may extend beyond the trimmed range, as a share of it


@dataclass(frozen=True)
class DrawnCurve:
    """A curve and its title. `over_time`: x is in seconds since the epoch, not steps."""

    title: str
    curve: Curve
    better: Better = Better.NEITHER
    over_time: bool = False

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
    known = sorted((metric for metric in curves if metric.name in KNOWN), key=_place)
    rates = sorted((metric for metric in metrics if metric.role is Role.RATE), key=_place)
    others = [metric for metric in curves if metric.name not in KNOWN]

    def drawn(chosen: Sequence[Metric]) -> list[DrawnCurve]:
        return [DrawnCurve(plain(metric.label), history.curves[metric.name], metric.better) for metric in chosen]

    times = [DrawnCurve("seconds per step, all ranks", history.step_seconds, over_time=True)]
    return [*drawn([*known, *rates[:1]]), *(times if history.step_seconds.points() else []), *drawn(others)]


def _place(metric: Metric) -> int:
    """The metric's position in the vocabulary; a program's own metrics come first."""
    return list(KNOWN).index(metric.name) if metric.name in KNOWN else -1


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


def robust(points: Sequence[Point]) -> Bounds:
    """An axis that covers all values except extreme ones, such as the loss of the first steps or a single spike.

    A value is extreme if it lies outside the trimmed range (without 5 % of the points at each end) by more than half
    of that range, where the axis then ends. Short and constant curves are shown whole.
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
