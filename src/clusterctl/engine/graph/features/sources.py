"""The source of a batch's features: a table in memory, of the device or the host, or a file with cached hot rows.

All give the same rows, bit for bit. Rows from a file are fetched ahead, while the previous step computes.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import moved
from clusterctl.engine.graph.features.ahead import Fetched, FetchesAhead
from clusterctl.engine.graph.features.row_file import RowFile, new_rows
from clusterctl.engine.graph.features.visits import hottest
from clusterctl.engine.graph.storage import shared_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.engine.graph.features.ahead import FetchAhead
    from clusterctl.engine.task.task import Task

Rows = TypeVar("Rows", covariant=True)

_ROWS_AT_ONCE = 1 << 12  # copied from the cache
INDEX = 4  # bytes of a node in the index of the cache


class Fetch(Protocol[Rows]):
    """Requested rows [nodes, features], or several tables of them."""

    @property
    def numbers(self) -> dict[str, float]:
        """Metrics of this fetch; call `rows` first."""

    def rows(self) -> Rows:
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

    spill = Spill(None)

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
