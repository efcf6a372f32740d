"""Tables of the rows between an evaluation's layers: on the device, in the node's memory, or in files.

They are where the features are. A file costs no memory but the page cache, which the kernel takes back: written to its
disk, and read like the features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch import distributed as dist

from clusterctl.engine.graph.blocks import moved
from clusterctl.engine.graph.features.row_file import RowFile, new_rows
from clusterctl.engine.graph.features.sources import FeaturesInMemory, FeaturesOnHost, Fetched, FetchesAhead
from clusterctl.engine.graph.storage import own_table, shared_table, table_in_file
from clusterctl.engine.task.heap import give_back

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from clusterctl.engine.graph.features.sources import Features, FetchAhead, Spill
    from clusterctl.engine.task.task import Task

_PARTS = 4  # of rows, after which freed memory is given back


def own_rows(parts: Iterable[Tensor], count: int, spill: Spill | None) -> Tensor:
    """The `count` rows of this rank's nodes, from one or more parts, on their device, or in the place of `spill`."""
    parts = iter(trimmed(parts) if spill else parts)
    first = next(parts)
    if spill:
        rows = own_table((count, first.size(1)), first.dtype, spill.folder)
    else:  # to join a list of the parts would hold all rows twice
        rows = first.new_empty(count, *first.shape[1:])
    rows[: (filled := len(first))].copy_(first)
    del first  # no part is needed while the next one is computed
    _fill(rows[filled:], parts)
    return rows


def rows_of_all(parts: Iterable[Tensor], like: Tensor, nodes: int, task: Task, spill: Spill | None) -> Features:
    """The rows of all `nodes`, as wide as `like`, from the `parts` of each rank's own slice. A collective.

    There is one copy per node of the cluster, in the place of `spill`; without it, in the memory of a node or GPU.
    """
    if spill is None:
        return FeaturesInMemory(shared_rows(parts, like, nodes, task))
    with table_in_file(task, _shape(nodes, like), like.dtype, spill.folder) as (table, path):
        file = RowFile(table, path) if spill.folder else None
        _share(trimmed(parts), table, task, writes=task.leads_node)
    return RowsInFile(file, table[:nodes], task) if file else FeaturesOnHost(table[:nodes], task)


def shared_rows(parts: Iterable[Tensor], like: Tensor, nodes: int, task: Task) -> Tensor:
    """A table of the rows of all `nodes`, as wide as `like`, from the `parts` of each rank's own slice.

    There is one copy per node, or per GPU. A collective.
    """
    with shared_table(task, _shape(nodes, like), like.dtype) as (table, writes):
        _share(parts, table, task, writes=writes)
    return table[:nodes]


def trimmed(parts: Iterable[Tensor]) -> Iterator[Tensor]:
    """The parts, for a file; now and then, the heap's free pages go back to the kernel.

    See `task.heap` for why the heap would grow with every part.
    """
    for number, part in enumerate(parts, 1):
        yield part
        if number % _PARTS == 0:
            give_back()


class RowsInFile:
    """The rows of a `table` [nodes, width] that is mapped from `file`, for one layer: `settle` closes the file."""

    spill = None

    def __init__(self, file: RowFile, table: Tensor, task: Task) -> None:
        self._file, self._table, self._device = file, table, task.device
        self._fetches = FetchesAhead(self._gather, task.device)

    def fetch(self, nodes: Tensor) -> FetchAhead[Tensor, Tensor]:
        return self._fetches.fetch(nodes)

    def piece(self, start: int, stop: int) -> Tensor:
        return moved([self._table[start:stop]], self._device)[0]

    def settle(self) -> None:
        self._fetches.after(self._file.close)

    def _gather(self, nodes: Tensor) -> Fetched[Tensor]:
        wanted, places = nodes.cpu().sort()
        rows = new_rows(wanted.numel(), self._table.size(1), self._table.dtype, self._device)
        self._file.begin(wanted, rows, places).wait()
        return Fetched(moved([rows], self._device)[0], {})


def _shape(nodes: int, like: Tensor) -> tuple[int, int]:
    """Of a table with an equal slice for each rank."""
    ranks = dist.get_world_size()
    return -(-nodes // ranks) * ranks, like.size(1)


def _share(parts: Iterable[Tensor], table: Tensor, task: Task, *, writes: bool) -> None:
    """Write the parts of each rank's own slice to the table of each node, or GPU. A collective.

    A table in the node's memory goes over gloo, as NCCL sends only a GPU's memory.
    """
    ranks, own = dist.get_world_size(), dist.get_rank()
    slices = torch.split(table, len(table) // ranks)
    _fill(slices[own], parts)
    on_host = table.device.type == "cpu"
    if on_host and task.node.size() == ranks:
        return
    group = task.agreeing if on_host else None
    unwanted = torch.empty_like(slices[own])
    for rank, piece in enumerate(slices):  # one slice at a time: no rank holds them all
        arriving = piece if writes or rank == own else unwanted
        dist.broadcast(arriving.view(torch.uint8), rank, group)  # as bytes: not every backend supports every dtype


def _fill(rows: Tensor, parts: Iterable[Tensor]) -> None:
    filled = 0
    for part in parts:
        rows[filled : (filled := filled + len(part))].copy_(part)  # from a GPU, too
        del part
