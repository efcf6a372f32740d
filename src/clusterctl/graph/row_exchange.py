"""Rows that ranks fetch from each other: one round asks and answers for all of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

_SETTLED = -1  # in place of the number of rows that a rank asks for


class RowsUnderWay(NamedTuple):
    """Rows that other ranks are sending."""

    rows: Tensor
    work: dist.Work

    def wait(self) -> Tensor:
        """The rows [asked, width], when they are all there."""
        self.work.wait()
        return self.rows


class RowExchange:
    """Answers from `table` [rows, width], in host memory, and asks the other ranks of `group` for rows of theirs.

    Both methods are collectives of the group: each rank calls them in the same order, and only from one thread. The
    group has to be used by nobody else: its collectives overlap with those of other groups.
    """

    def __init__(self, table: Tensor, group: dist.ProcessGroup) -> None:
        self._table, self._group = table, group

    def begin(self, places: Tensor, counts: list[int]) -> RowsUnderWay:
        """Ask for the rows at these `places` (int32) of other ranks' tables: the first `counts[0]` of rank 0's, etc."""
        asked_of_us = self._numbers(counts)
        return self._exchanged(places, counts, [max(0, count) for count in asked_of_us])

    def settle(self) -> None:
        """Answer the others until no rank asks any more: each of them has called this.

        To be called after rounds that are not as many on each rank.
        """
        ranks, none = self._group.size(), torch.empty(0, dtype=torch.int32)
        while set(asked_of_us := self._numbers([_SETTLED] * ranks)) != {_SETTLED}:
            self._exchanged(none, [0] * ranks, [max(0, count) for count in asked_of_us]).wait()

    def _numbers(self, counts: list[int]) -> list[int]:
        """How many rows each rank asks this one for, or that it asks no more."""
        ours = torch.tensor(counts)
        theirs = torch.empty_like(ours)
        dist.all_to_all_single(theirs, ours, group=self._group)
        found: list[int] = theirs.tolist()
        return found

    def _exchanged(self, places: Tensor, counts: list[int], asked_of_us: list[int]) -> RowsUnderWay:
        wanted = places.new_empty(sum(asked_of_us))
        dist.all_to_all_single(wanted, places, asked_of_us, counts, group=self._group)
        leaving = self._table.index_select(0, wanted)
        arriving = leaving.new_empty(places.numel(), self._table.size(1))
        as_bytes = arriving.view(torch.uint8), leaving.view(torch.uint8)  # gloo does not know every type
        work = dist.all_to_all_single(*as_bytes, counts, asked_of_us, group=self._group, async_op=True)
        return RowsUnderWay(arriving, work)
