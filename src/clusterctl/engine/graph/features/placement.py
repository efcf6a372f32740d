"""Where a training keeps its features: on every device or node, on disk, or split over the nodes.

If they are split, a node holds the rows of its ranks' slices (`own_slice`), so evaluation reads each rank's own nodes
without an exchange. Frequently read rows of other nodes can be replicated. `RowExchange` sends rows from node to node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache as once
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor
from torch import distributed as dist

from clusterctl.engine.graph.blocks import moved, own_slice
from clusterctl.engine.graph.features.row_file import RowFile
from clusterctl.engine.graph.features.sources import (
    INDEX,
    FeaturesInMemory,
    FeaturesOnDisk,
    FeaturesOnHost,
    Fetched,
    FetchesAhead,
    expected_visits,
    expected_visits_by_type,
    hottest,
    rows_within,
)
from clusterctl.engine.graph.storage import resident, resident_relations, shared_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.engine.graph.features.sources import Features, FetchAhead
    from clusterctl.engine.graph.storage import EdgeType, G, H
    from clusterctl.engine.task.task import Task


_HOST = torch.device("cpu")
_OF_EDGES = ("indices", "edge_weight", "edge_attr")


def placed(
    graph: G,
    task: Task,
    dtype: torch.dtype,
    cache: int | None,
    start: Callable[[], Tensor],
    fan_out: Sequence[int],
    *,
    split: bool = False,
    host: bool = False,
) -> tuple[G, Features]:
    """The graph on the task's device, and its features: in memory, split over the nodes, or on disk.

    With `split`, `cache` bytes of each node hold copies of other nodes' rows; without, a `cache` leaves the features on
    disk. On one node there is nothing to split. Unless the features are in memory, the graph keeps the mapped `x`.
    With `host`, a GPU leaves the edges, and features that are not on disk, in the node's memory.
    `start` returns the `start` of `expected_visits`; only the rank that fills a cache calls it. A collective of the
    node's ranks, or of all ranks if the features are split.
    """
    features: Features
    on_host = host and task.device != _HOST

    def visits() -> Tensor:
        return expected_visits(graph, start(), fan_out)

    if split and task.fetching is not None:
        features = SplitFeatures(graph.x, task, dtype, cache or 0, visits)
    elif cache is not None and not split:
        features = FeaturesOnDisk(graph.x, task, dtype, cache, visits)
    elif on_host:
        features = FeaturesOnHost(resident(graph, replace(task, device=_HOST), dtype).x, task)
    else:
        graph = resident(graph, task, dtype)
        return graph, FeaturesInMemory(graph.x)
    # Everything else moves to the device.
    kept = {name: value for name in _OF_EDGES if on_host and (value := getattr(graph, name, None)) is not None}
    without: Any = {name: value[:0] for name, value in kept.items()}
    moves = replace(graph, x=graph.x[:0].to(dtype), **without)
    return replace(resident(moves, task, dtype), x=graph.x, **cast("Any", kept)), features


def placed_by_type(
    graph: H,
    task: Task,
    dtype: torch.dtype,
    cache: int | None,
    start: Callable[[], dict[str, Tensor]],
    fan_outs: Mapping[EdgeType, Sequence[int]],
    *,
    split: bool = False,
) -> tuple[H, dict[str, Features], FetchesByType | None]:
    """Like `placed`, for the features of each node type; they share the `cache`, which serves the most visits per byte.

    The last result fetches rows of all types; None if all are in memory. A collective, like `placed`.
    """
    if task.fetching is None if split else cache is None:
        graph = resident_relations(graph, task, dtype)
        return graph, {kind: FeaturesInMemory(x) for kind, x in graph.x.items()}, None

    @once
    def visits() -> dict[str, Tensor]:
        return expected_visits_by_type(graph, start(), fan_outs)

    def visits_of(kind: str) -> Tensor:
        return visits()[kind]

    row_bytes = {kind: x.size(1) * dtype.itemsize + (ID if split else 0) for kind, x in graph.x.items()}
    index = {kind: 0 if split else INDEX * len(x) for kind, x in graph.x.items()}
    rows = torch.zeros(len(row_bytes), dtype=torch.int64)
    if cache and task.leads_node:
        often = [*map(visits_of, row_bytes)]
        rows = torch.tensor(rows_within(cache - sum(index.values()), often, [*row_bytes.values()]))
    dist.broadcast(rows, dist.get_global_rank(task.node, 0), group=task.node)
    kind_of_features = SplitFeatures if split else FeaturesOnDisk
    features = {
        kind: kind_of_features(
            graph.x[kind], task, dtype, index[kind] + int(count) * row_bytes[kind], partial(visits_of, kind)
        )
        for kind, count in zip(row_bytes, rows, strict=True)
    }
    bare = {kind: x[:0].to(dtype) for kind, x in graph.x.items()}
    graph = replace(resident_relations(replace(graph, x=bare), task, dtype), x=graph.x)
    return graph, dict(features), FetchesByType(features, task.device)


# The features of several node types, of which a batch needs rows of each.


if TYPE_CHECKING:
    Gathering: TypeAlias = "FeaturesOnDisk | SplitFeatures"

Tables: TypeAlias = dict[str, Tensor]


class FetchesByType:
    """Fetches rows of all types together: one thread gathers them, so that every rank exchanges in the same order."""

    def __init__(self, features: Mapping[str, Gathering], device: torch.device) -> None:
        self._features = features
        self._fetches = FetchesAhead(self._gather, device)

    def fetch(self, nodes: Tables) -> FetchAhead[Tables, Tables]:
        """Request the rows of these nodes (int64) of each type."""
        return self._fetches.fetch(nodes)

    def settle(self) -> None:
        """As `Features.settle`. All types share one exchange, so their rounds go on until all types are settled."""
        split = [features for features in self._features.values() if isinstance(features, SplitFeatures)]

        def answer_others() -> None:
            while sum(features.answer() for features in split):  # one round of each type, as in a fetch
                pass

        self._fetches.after(answer_others)

    def _gather(self, nodes: Tables) -> Fetched[Tables]:
        found = {kind: features.gather(nodes[kind]) for kind, features in self._features.items()}
        # The metrics of all types: their bytes, and the rate of all rows.
        counted = max(1, sum(one.counted for one in found.values()))
        numbers: dict[str, float] = {}
        for one in found.values():
            for name, value in one.numbers.items():
                part = value * one.counted / counted if name == "cache_hit_rate" else value
                numbers[name] = numbers.get(name, 0) + part
        numbers = {name: round(value, 4) for name, value in numbers.items()}
        return Fetched({kind: one.rows for kind, one in found.items()}, numbers)


_ROWS_AT_ONCE = 1 << 12  # copied
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
