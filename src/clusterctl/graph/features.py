"""Where a training takes the features of a batch from: a table in memory, or a file with its hot rows in memory.

Either gives the same rows, bit for bit. From a file they are fetched ahead, while the step before computes.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from clusterctl.graph.row_file import RowFile
from clusterctl.graph.storage import resident, shared_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterctl.graph.blocks import Adjacency
    from clusterctl.graph.row_file import Reading
    from clusterctl.graph.storage import G
    from clusterctl.task.task import Task

_ROWS_AT_ONCE = 1 << 16  # at the start, when the cache is filled
_EDGES_AT_ONCE = 1 << 22
_SLOT = 4  # bytes of a node in the index of the cache


class Fetch(NamedTuple):
    """Rows that were asked for: `rows()` waits for them. `numbers` are metrics of this fetch."""

    rows: Callable[[], Tensor]
    numbers: dict[str, float]


class Features(Protocol):
    """The features of all nodes."""

    def fetch(self, nodes: Tensor) -> Fetch:
        """Begin to fetch the rows of these nodes (int64)."""

    def piece(self, start: int, stop: int) -> Tensor:
        """The rows of consecutive nodes."""


class FeaturesInMemory:
    """A table [nodes, features]."""

    def __init__(self, table: Tensor) -> None:
        self._table = table

    def fetch(self, nodes: Tensor) -> Fetch:
        return Fetch(partial(self._table.index_select, 0, nodes), {})

    def piece(self, start: int, stop: int) -> Tensor:
        return self._table[start:stop]


class FeaturesOnDisk:
    """A table that is mapped from a file, and the rows that are read most often in memory.

    The cache and its index take `budget` bytes of a node's memory at most, however many ranks there are: those without
    GPUs share it, on GPUs each has its part. `visits` tells how often each node is read, float [nodes]. A collective of
    the node's ranks, as far as its construction goes.
    """

    def __init__(
        self, table: Tensor, task: Task, dtype: torch.dtype, budget: int, visits: Callable[[], Tensor]
    ) -> None:
        self._device, self._dtype = task.device, dtype
        self._file = RowFile(table)
        nodes, width = table.shape
        if task.device.type != "cpu":
            budget //= task.node.size()
        most = min(nodes, max(0, budget - _SLOT * nodes) // (width * dtype.itemsize))
        host = torch.device("cpu")
        with (
            shared_table(task, (nodes,), torch.int32, host) as (self._slots, leads),
            shared_table(task, (max(1, most), width), dtype, host) as (self._cache, _),
        ):
            if leads and most:
                self._fill(hottest(visits(), most))
        self._threads = ThreadPoolExecutor(1, "gather", torch.set_num_threads, (1,))

    def fetch(self, nodes: Tensor) -> Fetch:
        ids = nodes.cpu()
        slots = self._slots.index_select(0, ids).sub_(1)
        places = (slots < 0).nonzero().squeeze(1)
        wanted, order = ids.index_select(0, places).sort()
        reading = self._file.begin(wanted)
        gathered = self._threads.submit(self._gather, slots, places.index_select(0, order), reading)
        hits = 1 - places.numel() / max(1, ids.numel())
        return Fetch(gathered.result, {"cache_hit_rate": round(hits, 4), "bytes_read": reading.size})

    def piece(self, start: int, stop: int) -> Tensor:
        return self._file.begin(torch.arange(start, stop)).wait().to(self._device, self._dtype)

    def _gather(self, slots: Tensor, places: Tensor, reading: Reading) -> Tensor:
        """The rows in order: those of the cache, and at `places` those that are read."""
        rows = self._cache.index_select(0, slots.clamp_(min=0))
        rows.index_copy_(0, places, reading.wait().to(self._dtype))
        return rows.to(self._device)

    def _fill(self, nodes: Tensor) -> None:
        """Read the rows of these nodes, ascending, into the cache. Slots count from 1: a table begins as zeros."""
        self._slots[nodes] = torch.arange(1, nodes.numel() + 1, dtype=torch.int32)
        parts = torch.split(nodes, _ROWS_AT_ONCE) if nodes.numel() else ()
        for cached, part in zip(torch.split(self._cache, _ROWS_AT_ONCE), parts, strict=False):
            cached[: part.numel()] = self._file.begin(part).wait()


def placed(
    graph: G, task: Task, dtype: torch.dtype, cache: int | None, start: Tensor, fan_out: Sequence[int]
) -> tuple[G, Features]:
    """The graph on the task's device, and its features: in memory, or on the disk with a `cache` of so many bytes.

    In the second case the graph keeps the mapped `x`. `start` and `fan_out` are those of `expected_visits`. A
    collective of the node's ranks.
    """
    if cache is None:
        graph = resident(graph, task, dtype)
        return graph, FeaturesInMemory(graph.x)
    features = FeaturesOnDisk(graph.x, task, dtype, cache, partial(expected_visits, graph, start, fan_out))
    return replace(resident(replace(graph, x=graph.x[:0].to(dtype)), task, dtype), x=graph.x), features


def hottest(visits: Tensor, most: int) -> Tensor:
    """The nodes that are visited most often, int64, ascending, at most so many; of equal ones any."""
    chosen = visits.topk(most, sorted=False)
    return chosen.indices[chosen.values > 0].sort().values


def expected_visits(graph: Adjacency, start: Tensor, fan_out: Sequence[int]) -> Tensor:
    """How often samples reach each node, in expectation, if `start` is how often it is a seed: float32 [nodes].

    Each hop adds to the nodes reached so far their neighbours, each with the probability that the sampler takes it.
    """
    visits = start.to(torch.float32, copy=True)
    for count in fan_out:
        share = visits.clone()
        if count >= 0:
            share *= (count / graph.degree.clamp(min=1)).clamp_(max=1)
        for start, stop in _pieces(graph.indptr):
            bounds = graph.indptr[start : stop + 1]
            edges = graph.indices[int(bounds[0]) : int(bounds[-1])]
            visits.index_add_(0, edges, share[start:stop].repeat_interleave(bounds.diff(), output_size=edges.numel()))
    return visits


def _pieces(indptr: Tensor) -> list[tuple[int, int]]:
    """Ranges of targets with some edges each; one target may have more."""
    limits = torch.tensor(range(_EDGES_AT_ONCE, int(indptr[-1]), _EDGES_AT_ONCE), dtype=torch.int64)
    bounds = sorted({0, *torch.searchsorted(indptr, limits).tolist(), indptr.numel() - 1})
    return list(pairwise(bounds))
