"""Exact inference on the whole graph, layer by layer, split over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch import distributed as dist

from clusterctl.graph.blocks import Block
from clusterctl.task.shared_table import shared_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from clusterctl.graph.network import Network
    from clusterctl.graph.storage import Graph
    from clusterctl.task.task import Task

_NODES_AT_ONCE = 16384  # bounds what a layer holds beside its input and output


@torch.no_grad()
def infer(network: Network, graph: Graph, task: Task, aggregated: Tensor | None = None) -> tuple[range, Tensor]:
    """The nodes of this rank (equal slices in the order of the ranks) and the network's outputs for them.

    A collective: all ranks of the world call it. Every layer shares what the nodes send, and nothing wider; the first
    one nothing where its aggregation is known.
    """
    own, size = _own_slice(graph)
    rows = graph.x[own.start : own.stop]
    last = len(network.convolutions) - 1
    for depth, layer in enumerate(network.convolutions):
        if depth == 0 and aggregated is not None:
            rows = layer.combine(aggregated[own.start : own.stop], rows)
        else:
            sending = layer.send(rows)
            sent = graph.x if depth == 0 and sending is rows else _shared([sending], sending, size, task)
            rows = torch.cat([layer.receive(block, sent, rows[part]) for part, block in _blocks(graph, own)])
        if depth < last:
            rows = rows.relu_()
    return own, rows


@torch.no_grad()
def first_aggregation(network: Network, graph: Graph, task: Task) -> Tensor:
    """What the first layer aggregates for every node [nodes, features]: without parameters before it, a constant.

    A collective, split over the ranks as `infer`. The whole result is there once a node, or once a GPU.
    """
    own, size = _own_slice(graph)
    layer, rows = network.convolutions[0], graph.x[own.start : own.stop]
    parts = (layer.aggregate(block, graph.x, rows[part]) for part, block in _blocks(graph, own))
    return _shared(parts, graph.x, size, task)[: graph.num_nodes]


def _own_slice(graph: Graph) -> tuple[range, int]:
    """This rank's nodes, and how many the ranks have (the last ones fewer)."""
    size = -(-graph.num_nodes // dist.get_world_size())
    return range(graph.num_nodes)[dist.get_rank() * size : (dist.get_rank() + 1) * size], size


def _blocks(graph: Graph, own: range) -> Iterator[tuple[slice, Block]]:
    """The blocks of all edges into a rank's nodes, and which of these each is for; at least one, if an empty one."""
    for start in range(0, max(1, len(own)), _NODES_AT_ONCE):
        part = own[start : start + _NODES_AT_ONCE]
        yield slice(start, start + len(part)), _whole_neighborhood(graph, part)


def _whole_neighborhood(graph: Graph, part: range) -> Block:
    """The block of all edges into consecutive nodes: pieces of the graph's own arrays."""
    indptr = graph.indptr[part.start : part.stop + 1]
    neighbors = graph.indices[int(indptr[0]) : int(indptr[-1])]
    nodes = torch.arange(part.start, part.stop, device=indptr.device)
    return Block(graph, nodes, (indptr - indptr[0]).to(torch.int32), neighbors, columns=neighbors)


def _shared(parts: Iterable[Tensor], like: Tensor, size: int, task: Task) -> Tensor:
    """The rows of all ranks below each other, `size` of each (the last ones' followed by zeros), as wide as `like`.

    They are there once a node, or once a GPU. A collective.
    """
    ranks, own = dist.get_world_size(), dist.get_rank()
    with shared_table(task, (size * ranks, like.size(1)), like.dtype) as (table, writes):
        slices = torch.split(table, size)
        filled = 0
        for part in parts:
            slices[own][filled : (filled := filled + len(part))] = part
        if task.device.type == "cpu" and task.node.size() == ranks:
            return table
        unwanted = torch.empty_like(slices[own])
        for rank, piece in enumerate(slices):  # one slice travels at a time: no rank holds them all
            arriving = piece if writes or rank == own else unwanted
            dist.broadcast(arriving.view(torch.uint8), rank)  # as bytes: not every back end knows every type
    return table
