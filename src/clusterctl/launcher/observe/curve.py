"""A curve in bounded memory: values over an axis, aggregated in buckets whose width doubles as the axis grows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


_LARGEST = 1e300  # sums and differences of larger values overflow


class Point(NamedTuple):
    """The values in one bucket, at their mean position on the axis."""

    x: float
    low: float
    mean: float
    high: float


class Curve:
    """Values over `x` (steps or seconds) in at most `most` buckets, added in any order. Non-finite values are counted.

    A week of steps takes the memory of an hour: when the buckets are used up, each pair of neighbours is merged.
    """

    def __init__(self, most: int = 400, width: float = 1.0) -> None:
        self._most, self._width = most, width
        self._buckets: dict[int, _Bucket] = {}
        self.broken = 0  # number of NaN or infinite values
        self.first_broken: float | None = None  # position of the first of them
        self.last: float | None = None  # the value added last, finite or not

    def add(self, x: float, value: float) -> None:
        try:
            x, value = float(x), float(value)
        except OverflowError:  # an integer of hundreds of digits
            return
        if not math.isfinite(x):
            return
        self.last = value
        if not abs(value) <= _LARGEST:
            self.broken += 1
            self.first_broken = x if self.first_broken is None else min(x, self.first_broken)
            return
        index = math.floor(x / self._width)
        bucket = self._buckets.get(index)
        if bucket is None:
            bucket = self._buckets[index] = _Bucket()
        bucket.add(x, value)
        while len(self._buckets) > self._most:  # merge each pair of neighbours
            self._width *= 2
            buckets, self._buckets = self._buckets, {}
            for index, bucket in buckets.items():
                self._buckets.setdefault(index // 2, _Bucket()).merge(bucket)

    def cut(self, x: float) -> None:
        """Drop values at `x` and after it: a restarted run continues from there."""
        first = math.floor(x / self._width)
        self._buckets = {index: bucket for index, bucket in self._buckets.items() if index < first}
        if self.first_broken is not None and self.first_broken >= x:
            self.broken, self.first_broken = 0, None

    def points(self) -> list[Point]:
        return [bucket.point() for _, bucket in sorted(self._buckets.items())]

    def mean(self) -> float | None:
        """The mean over the axis, counting each bucket once (a compacted file has few old values); None if empty."""
        means = [bucket.total / bucket.count for bucket in self._buckets.values()]
        return sum(means) / len(means) if means else None

    def highest(self) -> float | None:
        return max((bucket.high for bucket in self._buckets.values()), default=None)


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """`points` aggregated into at most `most` stretches of the axis of equal length."""
    if len(points) <= most:
        return list(points)
    first = points[0].x
    length = (points[-1].x - first) or 1.0
    stretches: dict[int, list[Point]] = {}
    for point in points:
        stretches.setdefault(min(most - 1, int((point.x - first) / length * most)), []).append(point)
    return [
        Point(
            sum(point.x for point in some) / len(some),
            min(point.low for point in some),
            sum(point.mean for point in some) / len(some),
            max(point.high for point in some),
        )
        for some in stretches.values()
    ]


class _Bucket:
    __slots__ = ("count", "high", "low", "total", "xs")

    def __init__(self) -> None:
        self.count, self.xs, self.total, self.low, self.high = 0, 0.0, 0.0, math.inf, -math.inf

    def add(self, x: float, value: float) -> None:
        self.count += 1
        self.xs += x
        self.total += value
        self.low = min(self.low, value)
        self.high = max(self.high, value)

    def merge(self, other: _Bucket) -> None:
        self.count += other.count
        self.xs += other.xs
        self.total += other.total
        self.low = min(self.low, other.low)
        self.high = max(self.high, other.high)

    def point(self) -> Point:
        return Point(self.xs / self.count, self.low, self.total / self.count, self.high)
