"""Rows that ranks fetch from each other, in rounds: all ranks ask, and all answer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

_SETTLED = -1  # instead of a number of rows: this rank asks for no more


class RowsUnderWay(NamedTuple):
    """Rows that other ranks are sending."""

    rows: Tensor
    work: dist.Work

    def wait(self) -> Tensor:
        """The rows [requested, width], once all have arrived."""
        self.work.wait()
        return self.rows


class RowExchange:
    """Sends rows of `table` [rows, width], in host memory, to other ranks of `group`, and requests rows of theirs.

    Both methods are collectives of the group: every rank calls them in the same order, from one thread. Nothing else
    may use the group, because its collectives overlap with those of other groups.
    """

    def __init__(self, table: Tensor, group: dist.ProcessGroup) -> None:
        self._table, self._group = table, group

    def begin(self, places: Tensor, counts: list[int]) -> RowsUnderWay:
        """Request the rows at these `places` (int32) of other ranks' tables: the first `counts[0]` of rank 0's, etc."""
        return self._exchanged(places, counts, self._numbers(counts))

    def settle(self) -> None:
        """Answer the others until every rank has called this: their numbers of rounds may differ."""
        ranks, none = self._group.size(), torch.empty(0, dtype=torch.int32)
        while set(asked_of_us := self._numbers([_SETTLED] * ranks)) != {_SETTLED}:
            self._exchanged(none, [0] * ranks, asked_of_us).wait()

    def _numbers(self, counts: list[int]) -> list[int]:
        """How many rows each rank requests from this one, or `_SETTLED`."""
        ours = torch.tensor(counts)
        theirs = torch.empty_like(ours)
        dist.all_to_all_single(theirs, ours, group=self._group)
        found: list[int] = theirs.tolist()
        return found

    def _exchanged(self, places: Tensor, counts: list[int], asked_of_us: list[int]) -> RowsUnderWay:
        asked_of_us = [max(0, count) for count in asked_of_us]  # a settled rank asks for none
        wanted = places.new_empty(sum(asked_of_us))
        dist.all_to_all_single(wanted, places, asked_of_us, counts, group=self._group)
        leaving = self._table.index_select(0, wanted)
        arriving = leaving.new_empty(places.numel(), self._table.size(1))
        as_bytes = arriving.view(torch.uint8), leaving.view(torch.uint8)  # gloo lacks some types
        work = dist.all_to_all_single(*as_bytes, counts, asked_of_us, group=self._group, async_op=True)
        return RowsUnderWay(arriving, work)
