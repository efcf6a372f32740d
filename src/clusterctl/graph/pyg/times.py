"""Temporal sampling: a seed sees no nodes or edges later than itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Protocol

    from torch import Tensor

    class EndByTime(Protocol):
        """The signature of `end_by_time`."""

        def __call__(
            self, start: Tensor, end: Tensor, latest: Tensor, time: Tensor, sources: Tensor | None
        ) -> Tensor: ...


def end_by_time(start: Tensor, end: Tensor, latest: Tensor, time: Tensor, sources: Tensor | None) -> Tensor:
    """The first edge in each range (int64 `start` and `end`) that is later than `latest`, by bisection, int64.

    `time` is per edge, or per source node if `sources` is given; it ascends within each range.
    """
    low, high = start.clone(), end.clone()
    unsettled = (low < high).nonzero().squeeze(1)
    while unsettled.numel():
        middle = (low[unsettled] + high[unsettled]) // 2
        early = time[middle if sources is None else sources[middle]] <= latest[unsettled]
        low[unsettled] = middle.add(1).where(early, low[unsettled])
        high[unsettled] = high[unsettled].where(early, middle)
        unsettled = unsettled[low[unsettled] < high[unsettled]]
    return low


def check_sorted(start: Tensor, end: Tensor, time: Tensor, sources: Tensor | None) -> None:
    """Raise RuntimeError, worded as in pyg-lib, if the last edge of a range is earlier than its first."""
    several = end - start > 1
    first, last = start[several], end[several] - 1
    if sources is not None:
        first, last = sources[first], sources[last]
    if bool((time[first] > time[last]).any()):
        raise RuntimeError("Found invalid non-sorted temporal neighborhood")
