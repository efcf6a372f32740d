"""Exact inference on the whole graph, layer by layer, split over the ranks."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from clusterctl.graph.blocks import Block
from clusterctl.graph.neighbors import renumbered
from clusterctl.graph.storage import shared_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from clusterctl.graph.blocks import Adjacency
    from clusterctl.graph.convolutions import Convolution, Network
    from clusterctl.graph.features.sources import Features, Fetch
    from clusterctl.graph.storage import Graph
    from clusterctl.task.task import Task

T = TypeVar("T")

_NODES_AT_ONCE = 16384  # bounds what a layer holds in addition to its input and output
_NODES_AT_ONCE_FROM_DISK = 4096  # the same limit with the features of their neighbours


@torch.no_grad()
def infer(
    network: Network, graph: Graph, task: Task, aggregated: Tensor | None = None, features: Features | None = None
) -> tuple[range, Tensor]:
    """This rank's nodes (equal slices in rank order) and the network's outputs for them.

    A collective of all ranks. Every layer shares only the nodes' messages, and the first layer nothing if its
    aggregation is known. With `features`, these are read in order instead of the graph's table.
    """
    own = own_slice(graph.num_nodes)
    rows = graph.x[own.start : own.stop]
    last = len(network.convolutions) - 1
    for depth, layer in enumerate(network.convolutions):
        if depth == 0 and aggregated is not None:
            rows = layer.combine(aggregated[own.start : own.stop], rows)
        elif depth == 0 and features is not None:
            rows = _first_layer(layer, graph, own, features, task)
        else:
            sending = layer.send(rows)
            sent = graph.x if depth == 0 and sending is rows else shared_rows([sending], sending, graph.num_nodes, task)
            rows = torch.cat([layer.receive(block, sent, rows[part]) for part, block in blocks(graph, own)])
        if depth < last:
            rows = rows.relu_()
    return own, rows


def _first_layer(layer: Convolution, graph: Graph, own: range, features: Features, task: Task) -> Tensor:
    """The layer's rows of the nodes `own`, without a table of all features in memory.

    If the messages are narrower than the features, they are computed as the features are read, in order. Otherwise the
    features of a piece's neighbours are fetched while the previous piece is computed.
    """
    piece = partial(own_piece, features, own)
    if layer.projects_first:
        sending = (layer.send(piece(part)) for part in slices(len(own)))
        sent = shared_rows(sending, layer.send(piece(slice(0, 0))), graph.num_nodes, task)
        return torch.cat([layer.receive(block, sent, piece(part)) for part, block in blocks(graph, own)])

    def fetched() -> Iterator[tuple[Block, Fetch]]:
        for _, block in blocks(graph, own, _NODES_AT_ONCE_FROM_DISK):
            nodes, columns = renumbered(block.nodes, block.neighbors)
            yield replace(block, columns=columns), features.fetch(nodes)

    parts = []
    for block, fetch in one_ahead(fetched()):
        rows = fetch.rows()
        parts.append(layer(block, rows, rows[: block.nodes.numel()]))
    features.settle()
    return torch.cat(parts)


def own_piece(features: Features, own: range, part: slice) -> Tensor:
    """The features of a part of the nodes `own`."""
    return features.piece(own.start + part.start, own.start + part.stop)


def slices(count: int, at_once: int = _NODES_AT_ONCE) -> list[slice]:
    """Consecutive slices of `at_once` nodes; at least one, possibly empty."""
    return [slice(start, min(count, start + at_once)) for start in range(0, max(1, count), at_once)]


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


def own_slice(nodes: int) -> range:
    """This rank's part of `nodes` nodes: equal slices in rank order, the last ones shorter."""
    size = -(-nodes // dist.get_world_size())
    return range(nodes)[dist.get_rank() * size : (dist.get_rank() + 1) * size]


def blocks(graph: Adjacency, own: range, at_once: int = _NODES_AT_ONCE) -> Iterator[tuple[slice, Block]]:
    """The blocks of all edges into a rank's nodes, each with its slice of these nodes; at least one, possibly empty.

    They are views of the graph's own arrays; the source table has a row for every node.
    """
    for place in slices(len(own), at_once):
        part = own[place]
        indptr = graph.indptr[part.start : part.stop + 1]
        neighbors = graph.indices[int(indptr[0]) : int(indptr[-1])]
        nodes = torch.arange(part.start, part.stop, device=indptr.device)
        block = Block(graph, nodes, (indptr - indptr[0]).to(torch.int32), neighbors, columns=neighbors)
        yield place, block


def shared_rows(parts: Iterable[Tensor], like: Tensor, nodes: int, task: Task) -> Tensor:
    """A table of the rows of all `nodes`, as wide as `like`, from the `parts` of each rank's own slice.

    There is one copy per node, or per GPU. A collective.
    """
    ranks, own = dist.get_world_size(), dist.get_rank()
    size = -(-nodes // ranks)
    with shared_table(task, (size * ranks, like.size(1)), like.dtype) as (table, writes):
        slices = torch.split(table, size)
        filled = 0
        for part in parts:
            slices[own][filled : (filled := filled + len(part))] = part
        if task.device.type == "cpu" and task.node.size() == ranks:
            return table[:nodes]
        unwanted = torch.empty_like(slices[own])
        for rank, piece in enumerate(slices):  # one slice at a time: no rank holds them all
            arriving = piece if writes or rank == own else unwanted
            dist.broadcast(arriving.view(torch.uint8), rank)  # as bytes: not every backend supports every dtype
    return table[:nodes]
