"""Features that are split over the nodes of a run: each node holds a part, and fetches other rows from its peers.

A node holds the rows of its ranks' slices (`own_slice`), so evaluation reads each rank's own nodes without an exchange.
Frequently read rows of other nodes can be replicated. `RowExchange` sends rows from node to node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from clusterctl.engine.graph.blocks import moved, own_slice
from clusterctl.engine.graph.features.row_file import RowFile
from clusterctl.engine.graph.features.sources import Fetched, FetchesAhead, hottest
from clusterctl.engine.graph.storage import shared_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.engine.graph.features.sources import FetchAhead
    from clusterctl.engine.task.task import Task


_ROWS_AT_ONCE = 1 << 12  # copied
_HOST = torch.device("cpu")
_PLACE = 4  # bytes that request a row
ID = 8  # bytes of a node in the index of the replicated rows


@dataclass(frozen=True)
class Layout:
    """Where the rows of `total` nodes are: slice r, the rows from `r * size` on, on the node of rank r."""

    rank: int
    node_of: tuple[int, ...]  # of each rank
    total: int

    @property
    def size(self) -> int:
        """The rows of a slice; the last ones may have fewer."""
        return max(1, -(-self.total // len(self.node_of)))

    @property
    def own_slices(self) -> list[int]:
        """The slices that this rank's node holds, one after the other in one table."""
        return self._slices(self.node_of[self.rank])

    def first_rows(self) -> Tensor:
        """The first row of each slice in the table of its node, int64."""
        return torch.tensor([self._slices(node).index(rank) * self.size for rank, node in enumerate(self.node_of)])

    def peers(self) -> Tensor:
        """The rank to ask for rows of each slice, int64; this rank itself for those of its node.

        The ranks of a node ask different ranks of another node, whichever slice they want, to share the work evenly.
        """
        own = self.node_of[self.rank]
        local_rank = self.own_slices.index(self.rank)
        asked = {node: ranks[local_rank % len(ranks)] for node in self.node_of for ranks in [self._slices(node)]}
        asked[own] = self.rank
        return torch.tensor([asked[node] for node in self.node_of])

    def _slices(self, node: int) -> list[int]:
        return [rank for rank, other in enumerate(self.node_of) if other == node]


class SplitFeatures:
    """A table [nodes, width] that is mapped from a file, of which each node holds a part in its memory.

    Rows of other nodes with the most `visits` (float [nodes]) are replicated in up to `budget` bytes of each node. No
    other row is read from the file. Rows are kept and sent in the narrower of the table's type and `dtype`.

    Construction is a collective of all ranks and needs `task.fetching`. So is every fetch: all ranks fetch equally
    often, or `settle` afterwards.
    """

    spill = None

    def __init__(
        self, table: Tensor, task: Task, dtype: torch.dtype, budget: int, visits: Callable[[], Tensor]
    ) -> None:
        assert task.fetching is not None, "the features are split over several nodes"
        self._device, self._dtype = task.device, dtype
        total, width = table.shape
        numbers = [torch.empty(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(numbers, torch.tensor([task.place.node_rank]), group=task.fetching)
        layout = Layout(dist.get_rank(), tuple(map(int, numbers)), total)
        self._rank, self._size, self._peers = layout.rank, layout.size, layout.peers()
        self._first_rows = layout.first_rows()
        kept = min(table.dtype, dtype, key=lambda one: one.itemsize)
        most = min(total, budget // (width * kept.itemsize + ID))
        file = RowFile(table)
        with (
            shared_table(task, (self._size * len(layout.own_slices), width), kept, _HOST) as (self._own, _),
            shared_table(task, (max(1, most),), torch.int64, _HOST) as (self._replicated, leads),
            shared_table(task, (max(1, most), width), kept, _HOST) as (self._replicas, _),
        ):
            own = own_slice(total)
            places = torch.arange(len(own)) + self._first_rows[self._rank]
            file.begin(torch.arange(own.start, own.stop), self._own, places).wait()
            if leads:
                self._replicated.fill_(total)  # no node
            if leads and most:
                often = visits()
                for number in layout.own_slices:
                    often[number * self._size : (number + 1) * self._size] = 0
                nodes = hottest(often, self._replicated.numel())
                self._replicated[: nodes.numel()] = nodes
                file.begin(nodes, self._replicas, torch.arange(nodes.numel())).wait()
        file.close()
        self._replicates = most > 0
        self._exchange = RowExchange(self._own, task.fetching)
        self._fetches = FetchesAhead(self.gather, task.device)

    def fetch(self, nodes: Tensor) -> FetchAhead[Tensor, Tensor]:
        return self._fetches.fetch(nodes)

    def piece(self, start: int, stop: int) -> Tensor:
        first = int(self._first_rows[self._rank]) - self._rank * self._size
        return moved([self._own[first + start : first + stop].to(self._dtype)], self._device)[0]

    def settle(self) -> None:
        self._fetches.after(self._exchange.settle)

    def answer(self) -> bool:
        """As `RowExchange.answer`, in the calling thread."""
        return self._exchange.answer()

    def gather(self, nodes: Tensor) -> Fetched[Tensor]:
        """Request the missing rows from other ranks while copying those that this node has, in the calling thread."""
        ids = nodes.cpu()
        slices = ids // self._size
        peers = self._peers.index_select(0, slices)
        places = (self._first_rows.index_select(0, slices) + ids).sub_(slices, alpha=self._size)
        own, elsewhere = (peers == self._rank).nonzero().squeeze(1), (peers != self._rank).nonzero().squeeze(1)
        wanted = ids.index_select(0, elsewhere)
        slots = torch.searchsorted(self._replicated, wanted).clamp_(max=self._replicated.numel() - 1)
        is_here = self._replicated.index_select(0, slots) == wanted
        missing = elsewhere[~is_here]
        # By peer, as they are requested and will arrive.
        missing = missing[peers.index_select(0, missing).argsort(stable=True)]
        counts = peers.index_select(0, missing).bincount(minlength=dist.get_world_size()).tolist()
        arriving = self._exchange.begin(places.index_select(0, missing).to(torch.int32), counts)
        rows = torch.empty(ids.numel(), self._own.size(1), dtype=self._dtype, pin_memory=self._device.type == "cuda")
        _copy(self._own, places.index_select(0, own), rows, own)
        _copy(self._replicas, slots[is_here], rows, elsewhere[is_here])
        rows.index_copy_(0, missing, arriving.wait().to(self._dtype))
        size = missing.numel() * (self._own.size(1) * self._own.itemsize + _PLACE)
        numbers: dict[str, float] = {"bytes_exchanged": size}
        if self._replicates:
            hits = 1 - missing.numel() / max(1, elsewhere.numel())
            numbers["cache_hit_rate"] = round(hits, 4)
        return Fetched(moved([rows], self._device)[0], numbers, elsewhere.numel())


def _copy(table: Tensor, taken: Tensor, rows: Tensor, places: Tensor) -> None:
    """Copy the rows `taken` of a table to their `places` in `rows`, in chunks."""
    for some, of in zip(torch.split(taken, _ROWS_AT_ONCE), torch.split(places, _ROWS_AT_ONCE), strict=True):
        rows.index_copy_(0, of, table.index_select(0, some).to(rows.dtype))


# Rows that ranks fetch from each other, in rounds: all ranks ask, and all answer.


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

    All methods are collectives of the group: every rank calls them in the same order, from one thread. Nothing else
    may use the group, because its collectives overlap with those of other groups.
    """

    def __init__(self, table: Tensor, group: dist.ProcessGroup) -> None:
        self._table, self._group = table, group

    def begin(self, places: Tensor, counts: list[int]) -> RowsUnderWay:
        """Request the rows at these `places` (int32) of other ranks' tables: the first `counts[0]` of rank 0's, etc."""
        return self._exchanged(places, counts, self._numbers(counts))

    def settle(self) -> None:
        """Answer the others until every rank has called this: their numbers of rounds may differ."""
        while self.answer():
            pass

    def answer(self) -> bool:
        """Answer the others in one round, without a request; whether any rank had one to make, or might later."""
        ranks, none = self._group.size(), torch.empty(0, dtype=torch.int32)
        if set(asked_of_us := self._numbers([_SETTLED] * ranks)) == {_SETTLED}:
            return False
        self._exchanged(none, [0] * ranks, asked_of_us).wait()
        return True

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
