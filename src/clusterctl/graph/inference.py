"""Exact inference on the whole graph, layer by layer, split over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch import distributed as dist

from clusterctl.graph.blocks import Block
from clusterctl.graph.storage import shared_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from clusterctl.graph.blocks import Adjacency
    from clusterctl.graph.convolutions import Network
    from clusterctl.graph.storage import Graph
    from clusterctl.task.task import Task

_NODES_AT_ONCE = 16384  # bounds what a layer holds in addition to its input and output


@torch.no_grad()
def infer(network: Network, graph: Graph, task: Task, aggregated: Tensor | None = None) -> tuple[range, Tensor]:
    """The nodes of this rank (equal slices in the order of the ranks) and the network's outputs for them.

    A collective: all ranks of the world call it. Every layer shares what the nodes send, and nothing wider; the first
    one nothing where its aggregation is known.
    """
    own = own_slice(graph.num_nodes)
    rows = graph.x[own.start : own.stop]
    last = len(network.convolutions) - 1
    for depth, layer in enumerate(network.convolutions):
        if depth == 0 and aggregated is not None:
            rows = layer.combine(aggregated[own.start : own.stop], rows)
        else:
            sending = layer.send(rows)
            sent = graph.x if depth == 0 and sending is rows else shared_rows([sending], sending, graph.num_nodes, task)
            rows = torch.cat([layer.receive(block, sent, rows[part]) for part, block in blocks(graph, own)])
        if depth < last:
            rows = rows.relu_()
    return own, rows


@torch.no_grad()
def first_aggregation(network: Network, graph: Graph, task: Task) -> Tensor:
    """What the first layer aggregates for every node [nodes, features]: without parameters before it, a constant.

    A collective, split over the ranks as `infer`. The whole result is there once a node, or once a GPU.
    """
    own = own_slice(graph.num_nodes)
    layer, rows = network.convolutions[0], graph.x[own.start : own.stop]
    parts = (layer.aggregate(block, graph.x, rows[part]) for part, block in blocks(graph, own))
    return shared_rows(parts, graph.x, graph.num_nodes, task)


def own_slice(nodes: int) -> range:
    """This rank's part of so many nodes: equal slices in the order of the ranks, the last ones shorter."""
    size = -(-nodes // dist.get_world_size())
    return range(nodes)[dist.get_rank() * size : (dist.get_rank() + 1) * size]


def blocks(graph: Adjacency, own: range) -> Iterator[tuple[slice, Block]]:
    """The blocks of all edges into a rank's nodes, and which of these each is for; at least one, if an empty one.

    They are pieces of the graph's own arrays; the rows of the source table are all nodes.
    """
    for start in range(0, max(1, len(own)), _NODES_AT_ONCE):
        part = own[start : start + _NODES_AT_ONCE]
        indptr = graph.indptr[part.start : part.stop + 1]
        neighbors = graph.indices[int(indptr[0]) : int(indptr[-1])]
        nodes = torch.arange(part.start, part.stop, device=indptr.device)
        block = Block(graph, nodes, (indptr - indptr[0]).to(torch.int32), neighbors, columns=neighbors)
        yield slice(start, start + len(part)), block


def shared_rows(parts: Iterable[Tensor], like: Tensor, nodes: int, task: Task) -> Tensor:
    """The rows of all `nodes` below each other, as wide as `like`, from the `parts` of each rank's own slice.

    They are there once a node, or once a GPU. A collective.
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
        for rank, piece in enumerate(slices):  # one slice travels at a time: no rank holds them all
            arriving = piece if writes or rank == own else unwanted
            dist.broadcast(arriving.view(torch.uint8), rank)  # as bytes: not every back end knows every type
    return table[:nodes]
