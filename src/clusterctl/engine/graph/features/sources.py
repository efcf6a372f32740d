"""The source of a batch's features: a table in memory, of the device or the host, or a file with cached hot rows.

All give the same rows, bit for bit. Which rows are hot depends on how often each node's features are read
(`expected_visits`). Rows from a file are fetched ahead, while the previous step computes: by a thread that gathers one
batch ahead of the one in use (`FetchesAhead`). The loop prepares several batches ahead, but a fetch holds memory for
its rows from the start: so it begins only when the previous one is used.
"""

from __future__ import annotations

import tempfile
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import edge_ranges, moved
from clusterctl.engine.graph.features.row_file import RowFile, new_rows
from clusterctl.engine.graph.storage import shared_table
from clusterctl.engine.task.worker import Worker, queued

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.engine.graph.blocks import Adjacency
    from clusterctl.engine.graph.storage import EdgeType, HeteroGraph
    from clusterctl.engine.task.task import Task
    from clusterctl.engine.task.worker import Later


_EDGES_AT_ONCE = 1 << 22
_HALVINGS = 60


def expected_visits(graph: Adjacency, start: Tensor, fan_out: Sequence[int]) -> Tensor:
    """The expected number of visits to each node, float32 [nodes]; `start` is how often each node is a seed.

    Each hop adds the neighbours of the nodes reached so far, weighted by the probability of being sampled.
    """
    visits = start.to(torch.float32, copy=True)
    for count in fan_out:
        _visit_neighbors(graph, visits, count, visits)
    return visits


def expected_visits_by_type(
    graph: HeteroGraph, start: Mapping[str, Tensor], fan_outs: Mapping[EdgeType, Sequence[int]]
) -> dict[str, Tensor]:
    """Like `expected_visits`, for each node type; `start` may leave out types without seeds."""
    visits = {kind: torch.zeros(count) for kind, count in graph.num_nodes.items()}
    for kind, often in start.items():
        visits[kind] += often
    for hop in range(max(map(len, fan_outs.values()))):
        reached = {kind: often.clone() for kind, often in visits.items()}
        for relation, counts in fan_outs.items():
            source, _, target = relation
            if counts[hop]:
                _visit_neighbors(graph.relation(relation), reached[target], counts[hop], visits[source])
    return visits


def _visit_neighbors(graph: Adjacency, targets: Tensor, count: int, visits: Tensor) -> None:
    """Add `count` neighbours (-1: all) to the sources' `visits` for each visit to `targets`, which may be the same."""
    share = targets * (count / graph.degree.clamp(min=1)).clamp_(max=1) if count >= 0 else targets.clone()
    for first, last in edge_ranges(graph.indptr, _EDGES_AT_ONCE):
        bounds = graph.indptr[first : last + 1]
        edges = graph.indices[int(bounds[0]) : int(bounds[-1])]
        visits.index_add_(0, edges, share[first:last].repeat_interleave(bounds.diff(), output_size=edges.numel()))


def hottest(visits: Tensor, most: int) -> Tensor:
    """The at most `most` nodes that are visited most often, int64, ascending; ties are broken arbitrarily."""
    chosen = visits.topk(most, sorted=False)
    return chosen.indices[chosen.values > 0].sort().values


def rows_within(budget: int, visits: Sequence[Tensor], row_bytes: Sequence[int]) -> list[int]:
    """How many rows of each table to cache, so that `budget` bytes serve the most visits per byte."""

    def above(rate: float) -> list[int]:
        """The rows of each table that are visited more than `rate` times per byte."""
        return [int((often > rate * row).sum()) for often, row in zip(visits, row_bytes, strict=True)]

    def size(counts: Sequence[int]) -> int:
        return sum(count * row for count, row in zip(counts, row_bytes, strict=True))

    if size(above(0.0)) <= budget:
        return above(0.0)
    low, high = 0.0, max(float(often.max()) for often in visits if often.numel()) / min(row_bytes)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if size(above(middle)) > budget else (low, middle)
    counts, candidates = above(high), above(low)
    for number, row in enumerate(row_bytes):  # rows between the two rates are visited equally often
        counts[number] += min(candidates[number] - counts[number], max(0, budget - size(counts)) // row)
    return counts


Nodes = TypeVar("Nodes")
Rows = TypeVar("Rows")


class Fetched(NamedTuple, Generic[Rows]):
    """Rows, metrics of their fetch, and how many of them the hit rate refers to."""

    rows: Rows
    numbers: dict[str, float]
    counted: int = 0


class FetchesAhead(Generic[Nodes, Rows]):
    """Calls `gather` for the nodes of each fetch in one thread, in the order of the requests.

    A fetch that is used out of turn is gathered before those that are still waiting.
    """

    def __init__(self, gather: Callable[[Nodes], Fetched[Rows]], device: torch.device) -> None:
        self._gather, self.device = gather, device
        self._thread = Worker("gather", device)
        self._lock = Lock()
        self._waiting: deque[FetchAhead[Nodes, Rows]] = deque()
        self._ahead: FetchAhead[Nodes, Rows] | None = None

    def fetch(self, nodes: Nodes) -> FetchAhead[Nodes, Rows]:
        """Request the rows of these nodes (int64)."""
        fetch = FetchAhead(self, nodes)
        with self._lock:
            self._waiting.append(fetch)
            self._begin_next()
        return fetch

    def begun(self, fetch: FetchAhead[Nodes, Rows]) -> Later[Fetched[Rows]]:
        """The rows of a fetch that is about to be used; also starts the next fetch."""
        with self._lock:
            if fetch is self._ahead:
                self._ahead = None
            if fetch.begun is None:  # out of turn
                self._waiting.remove(fetch)
                fetch.begun = self._thread.submit(self._gather, fetch.nodes, after=fetch.ready)
            self._begin_next()
        return fetch.begun

    def after(self, work: Callable[[], None]) -> None:
        """Run `work` in the same thread, after the fetches that have begun, and wait for it."""
        self._thread.submit(work).result()

    def _begin_next(self) -> None:
        """Keep only one fetch ahead, however many were requested: each holds memory from the start."""
        if self._ahead is None and self._waiting:
            self._ahead = self._waiting.popleft()
            self._ahead.begun = self._thread.submit(self._gather, self._ahead.nodes, after=self._ahead.ready)


class FetchAhead(Generic[Nodes, Rows]):
    """Rows that are read ahead of their use if they are next."""

    def __init__(self, fetches: FetchesAhead[Nodes, Rows], nodes: Nodes) -> None:
        self._fetches, self.nodes = fetches, nodes
        self.ready = queued(fetches.device)  # another thread may start the gathering
        self.begun: Later[Fetched[Rows]] | None = None
        self.numbers: dict[str, float] = {}

    def rows(self) -> Rows:
        rows, self.numbers, _ = self._fetches.begun(self).result()
        self.begun = None  # only the caller keeps the rows
        return rows


RowsRead = TypeVar("RowsRead", covariant=True)

_ROWS_AT_ONCE = 1 << 12  # copied from the cache
INDEX = 4  # bytes of a node in the index of the cache


class Fetch(Protocol[RowsRead]):
    """Requested rows [nodes, features], or several tables of them."""

    @property
    def numbers(self) -> dict[str, float]:
        """Metrics of this fetch; call `rows` first."""

    def rows(self) -> RowsRead:
        """Wait for the rows. Call it once."""


class Spill(NamedTuple):
    """Where an evaluation keeps the tables between its layers, if not on the rank's device."""

    folder: Path | None  # for files; None: the node's memory


class Features(Protocol):
    """The features of all nodes."""

    @property
    def spill(self) -> Spill | None:
        """Where the tables between the layers of an evaluation should be; None: on the rank's device."""

    def fetch(self, nodes: Tensor) -> Fetch[Tensor]:
        """Request the rows of these nodes (int64)."""

    def piece(self, start: int, stop: int) -> Tensor:
        """The rows of consecutive nodes, of this rank's `own_slice`."""

    def settle(self) -> None:
        """Call it after fetches whose number differs between ranks: others may wait for rows. A collective."""


class FeaturesInMemory:
    """A `table` [nodes, features]."""

    spill = None

    def __init__(self, table: Tensor) -> None:
        self.table = table

    def fetch(self, nodes: Tensor) -> Fetch[Tensor]:
        return FetchFromMemory(self.table, nodes)

    def piece(self, start: int, stop: int) -> Tensor:
        return self.table[start:stop]

    def settle(self) -> None:
        pass


@dataclass(frozen=True)
class FetchFromMemory:
    """Rows that are read on use."""

    table: Tensor
    nodes: Tensor
    numbers: dict[str, float] = field(default_factory=dict)

    def rows(self) -> Tensor:
        return self.table.index_select(0, self.nodes)


class FeaturesOnHost:
    """A `table` [nodes, features] in the node's memory, for a GPU: a batch's rows reach it through pinned memory.

    The table itself is not pinned: no operator of torch reads the host's memory from a GPU, and to pin it would take
    every rank of a node minutes and address space of its own.
    """

    spill: Spill | None = Spill(None)

    def __init__(self, table: Tensor, task: Task) -> None:
        self._table, self._device = table, task.device
        self._fetches = FetchesAhead(self._gather, task.device)

    def fetch(self, nodes: Tensor) -> FetchAhead[Tensor, Tensor]:
        return self._fetches.fetch(nodes)

    def piece(self, start: int, stop: int) -> Tensor:
        return moved([self._table[start:stop]], self._device)[0]

    def settle(self) -> None:
        pass

    def _gather(self, nodes: Tensor) -> Fetched[Tensor]:
        ids, width = nodes.cpu(), self._table.size(1)
        rows = torch.empty(ids.numel(), width, dtype=self._table.dtype, pin_memory=self._device.type == "cuda")
        torch.index_select(self._table, 0, ids, out=rows)
        return Fetched(moved([rows], self._device)[0], {})


class FeaturesOnDisk:
    """A table that is mapped from a file, with the most frequently read rows cached in memory.

    The cache and its index take at most `budget` bytes of a node's memory, which its ranks share. `visits` returns how
    often each node is read, float [nodes]. Construction is a collective of the node's ranks.
    """

    def __init__(
        self, table: Tensor, task: Task, dtype: torch.dtype, budget: int, visits: Callable[[], Tensor]
    ) -> None:
        self._device, self._dtype = task.device, dtype
        self._file = RowFile(table)
        nodes, width = table.shape
        most = min(nodes, max(0, budget - INDEX * nodes) // (width * dtype.itemsize))
        host = torch.device("cpu")
        with (
            shared_table(task, (nodes,), torch.int32, host) as (self._slots, leads),
            shared_table(task, (max(1, most), width), dtype, host) as (self._cache, _),
        ):
            if leads and most:
                read_often = hottest(visits(), most)
                slots = torch.arange(read_often.numel())
                self._slots[read_often] = slots.to(torch.int32) + 1  # 0 means not cached
                self._file.begin(read_often, self._cache, slots).wait()
        self._fetches = FetchesAhead(self.gather, task.device)

    @property
    def spill(self) -> Spill:
        return Spill(Path(tempfile.gettempdir()))

    def fetch(self, nodes: Tensor) -> FetchAhead[Tensor, Tensor]:
        return self._fetches.fetch(nodes)

    def piece(self, start: int, stop: int) -> Tensor:
        rows = new_rows(stop - start, self._cache.size(1), self._dtype, self._device)
        self._file.begin(torch.arange(start, stop), rows, torch.arange(stop - start)).wait()
        return moved([rows], self._device)[0]

    def settle(self) -> None:
        pass

    def gather(self, nodes: Tensor) -> Fetched[Tensor]:
        """Read the missing rows while copying the cached ones, in the calling thread."""
        ids = nodes.cpu()
        slots = self._slots.index_select(0, ids)
        missing, present = (slots == 0).nonzero().squeeze(1), slots.nonzero().squeeze(1)
        wanted, order = ids.index_select(0, missing).sort()
        rows = new_rows(ids.numel(), self._cache.size(1), self._dtype, self._device)
        reading = self._file.begin(wanted, rows, missing.index_select(0, order))
        for places in torch.split(present, _ROWS_AT_ONCE):
            rows.index_copy_(0, places, self._cache.index_select(0, slots.index_select(0, places) - 1))
        reading.wait()
        hits = present.numel() / max(1, ids.numel())
        numbers = {"cache_hit_rate": round(hits, 4), "bytes_read": reading.size}
        return Fetched(moved([rows], self._device)[0], numbers, ids.numel())
