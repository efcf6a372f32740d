"""Exact inference on the whole graph, layer by layer, split over the ranks.

The tables of rows between the layers are where the features are: on the device, in the node's memory, or in files. A
file costs no memory but the page cache, which the kernel takes back: written to its disk, and read like the features.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from clusterctl.engine.graph.blocks import Block, moved, own_slice, slices
from clusterctl.engine.graph.features.row_file import RowFile, new_rows
from clusterctl.engine.graph.features.sources import FeaturesInMemory, FeaturesOnHost, Fetched
from clusterctl.engine.graph.neighbors import renumbered
from clusterctl.engine.graph.storage import own_table, shared_table, table_in_file
from clusterctl.engine.task.heap import give_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from clusterctl.engine.graph.blocks import Adjacency
    from clusterctl.engine.graph.convolutions import Convolution, Network
    from clusterctl.engine.graph.features.sources import Features, Spill
    from clusterctl.engine.graph.storage import Graph
    from clusterctl.engine.task.task import Task

    Piece = Callable[[slice], Tensor]
    """The rows of a part of this rank's nodes."""


T = TypeVar("T")

NODES_AT_ONCE = 16384  # bounds what a layer holds in addition to its input and output
NODES_AT_ONCE_FROM_DISK = 4096  # the same if their rows, and those of their neighbours, must be fetched


@torch.no_grad()
def infer(
    network: Network,
    graph: Graph,
    task: Task,
    aggregated: Tensor | None = None,
    features: Features | None = None,
    finish: Callable[[Tensor], Tensor] = lambda outputs: outputs,
) -> tuple[range, Tensor]:
    """This rank's nodes (equal slices in rank order) and the network's outputs for them, each piece `finish`ed.

    A collective of all ranks. Every layer shares only the nodes' messages, and the first layer nothing if its
    aggregation is known. With `features`, these are read instead of the graph's table; tables between layers are where
    they say.
    """
    own = own_slice(graph.num_nodes)
    features = features or FeaturesInMemory(graph.x)
    piece = partial(own_piece, features, own)
    last = len(network.convolutions) - 1
    for depth, layer in enumerate(network.convolutions):
        if depth == 0 and aggregated is not None:
            parts = iter([layer.combine(aggregated[own.start : own.stop], piece(slice(0, len(own))))])
        elif depth == 0 and not layer.projects_first:
            parts = _received(layer, graph, own, features, piece)
        else:
            sent = sent_by_all(layer.send, piece, own, graph.num_nodes, task, features.spill)
            parts = _received(layer, graph, own, sent, piece)
        parts = map(Tensor.relu_ if depth < last else finish, parts)
        rows = own_rows(parts, len(own), features.spill if depth < last else None)
        piece = partial(part_of, rows, task.device)
    return own, rows


def part_of(rows: Tensor, device: torch.device, part: slice) -> Tensor:
    """A part of this rank's rows between layers, which may be in a file, on `device`."""
    return moved([rows[part]], device)[0]


def _received(layer: Convolution, graph: Graph, own: range, sent: Features, piece: Piece) -> Iterator[Tensor]:
    """The layer's rows of the nodes `own`, from the messages of all nodes and each `piece` of their own rows."""
    in_memory = isinstance(sent, FeaturesInMemory)

    def receive(part: slice, block: Block, rows: Tensor) -> Tensor:
        # Fetched rows begin with those of the block's own nodes: a `piece` would read these a second time.
        begins_with_targets = not in_memory and not layer.projects_first
        return layer.receive(block, rows, rows[: block.nodes.numel()] if begins_with_targets else piece(part))

    def read_by(block: Block) -> tuple[Tensor, Block]:
        nodes, columns = renumbered(block.nodes, block.neighbors)
        return nodes, replace(block, columns=columns)

    return received(blocks(graph, own, None if in_memory else NODES_AT_ONCE_FROM_DISK), sent, receive, read_by)


def sent_by_all(
    send: Callable[[Tensor], Tensor], piece: Piece, own: range, nodes: int, task: Task, spill: Spill | None
) -> Features:
    """The messages of all `nodes`, each computed once: by the rank that has the node. A collective."""
    sending = (send(piece(part)) for part in slices(len(own), NODES_AT_ONCE_FROM_DISK if spill else NODES_AT_ONCE))
    return rows_of_all(sending, send(piece(slice(0, 0))), nodes, task, spill)


def received(
    pieces: Iterable[tuple[slice, T]],
    sent: Features,
    receive: Callable[[slice, T, Tensor], Tensor],
    read_by: Callable[[T], tuple[Tensor, T]],
) -> Iterator[Tensor]:
    """What each piece of edges receives: `receive(part, edges, rows)`, with the table `rows` that the edges refer to.

    Unless the messages are in memory, only those that `read_by` finds, with the edges between them, are fetched, while
    the previous piece is computed.
    """
    if isinstance(sent, FeaturesInMemory):
        for part, edges in pieces:
            yield receive(part, edges, sent.table)
        return
    found = ((part, *read_by(edges)) for part, edges in pieces)
    for part, edges, fetch in one_ahead((part, edges, sent.fetch(nodes)) for part, nodes, edges in found):
        yield receive(part, edges, fetch.rows())
    sent.settle()


def own_piece(features: Features, own: range, part: slice) -> Tensor:
    """The features of a part of the nodes `own`."""
    return features.piece(own.start + part.start, own.start + part.stop)


def one_ahead(items: Iterable[T]) -> Iterator[T]:
    """The items, each delayed until the next one is available."""
    waiting: deque[T] = deque()
    for item in items:
        waiting.append(item)
        if len(waiting) > 1:
            yield waiting.popleft()
    yield from waiting


@torch.no_grad()
def first_aggregation(network: Network, graph: Graph, task: Task) -> Tensor:
    """The first layer's aggregation for every node [nodes, features]; constant, as no parameters come before it.

    A collective, split over the ranks like `infer`. There is one copy of the whole result per node, or per GPU.
    """
    own = own_slice(graph.num_nodes)
    layer, rows = network.convolutions[0], graph.x[own.start : own.stop]
    parts = (layer.aggregate(block, graph.x, rows[part]) for part, block in blocks(graph, own))
    return shared_rows(parts, graph.x, graph.num_nodes, task)


def blocks(graph: Adjacency, own: range, at_once: int | None = None) -> Iterator[tuple[slice, Block]]:
    """The blocks of all edges into a rank's nodes, each with its slice of these nodes; at least one, possibly empty.

    They are views of the graph's own arrays; the source table has a row for every node.
    """
    for place in slices(len(own), at_once or NODES_AT_ONCE):
        part = own[place]
        indptr = graph.indptr[part.start : part.stop + 1]
        neighbors = graph.sources(slice(int(indptr[0]), int(indptr[-1])))
        nodes = torch.arange(part.start, part.stop, device=indptr.device)
        block = Block(graph, nodes, (indptr - indptr[0]).to(torch.int32), neighbors, columns=neighbors)
        yield place, block


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


def parts_or(empty: Tensor, parts: Iterable[Tensor]) -> Iterator[Tensor]:
    """The parts, or, on a rank that has no nodes and so no parts, this `empty` one."""
    none = True
    for part in parts:
        none = False
        yield part
        del part  # no part is needed while the next one is computed
    if none:
        yield empty


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


class RowsInFile(FeaturesOnHost):
    """The rows of a `table` [nodes, width] that is mapped from `file`, for one layer: `settle` closes the file."""

    spill = None

    def __init__(self, file: RowFile, table: Tensor, task: Task) -> None:
        super().__init__(table, task)
        self._file = file

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
