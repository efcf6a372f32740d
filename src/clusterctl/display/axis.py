"""The value axis of a chart: bounds that a few extreme values cannot stretch until the rest is a flat line."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.observe.curve import Point

_FEW_POINTS = 20  # among fewer, no value is called extreme
_TRIMMED = 0.05  # of the points, at each end
_REACH = 0.5  # of the trimmed range: how far beyond it the axis may go


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
