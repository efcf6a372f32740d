"""Which edges a seed may see, where nodes or edges have times: none that is later than the seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Protocol

    from torch import Tensor

    class EndByTime(Protocol):
        """`end_by_time`, or what does as it does."""

        def __call__(
            self, start: Tensor, end: Tensor, latest: Tensor, time: Tensor, sources: Tensor | None
        ) -> Tensor: ...


def end_by_time(start: Tensor, end: Tensor, latest: Tensor, time: Tensor, sources: Tensor | None) -> Tensor:
    """Where the edges of each range (int64 `start` and `end`) become later than `latest`, by bisection, int64.

    `time` is that of each edge, or, if there are `sources`, of each source node; it ascends in each range.
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
    """RuntimeError, in pyg-lib's words, if the last edge of a range is earlier than its first."""
    several = end - start > 1
    first, last = start[several], end[several] - 1
    if sources is not None:
        first, last = sources[first], sources[last]
    if bool((time[first] > time[last]).any()):
        raise RuntimeError("Found invalid non-sorted temporal neighborhood")
