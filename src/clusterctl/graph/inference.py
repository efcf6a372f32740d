"""Exact inference on the whole graph, layer by layer, split over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch import distributed as dist

from clusterctl.graph.blocks import Block

if TYPE_CHECKING:
    from clusterctl.graph.network import Network
    from clusterctl.graph.storage import Graph

_NODES_AT_ONCE = 16384  # bounds what a layer holds beside its input and output


@torch.no_grad()
def infer(network: Network, graph: Graph) -> tuple[range, Tensor]:
    """The nodes of this rank (equal slices in the order of the ranks) and the network's outputs for them.

    A collective: all ranks of the world call it. Every layer gathers what the nodes send, and nothing wider.
    """
    size = -(-graph.num_nodes // dist.get_world_size())
    own = range(graph.num_nodes)[dist.get_rank() * size : (dist.get_rank() + 1) * size]
    rows = graph.x[own.start : own.stop]
    last = len(network.convolutions) - 1
    for depth, layer in enumerate(network.convolutions):
        sending = layer.send(rows)
        sent = graph.x if depth == 0 and sending is rows else _gathered(sending, size)
        parts = [own[start : start + _NODES_AT_ONCE] for start in range(0, len(own), _NODES_AT_ONCE)] or [own]
        outputs = [
            layer.receive(_whole_neighborhood(graph, part), sent, rows[part.start - own.start : part.stop - own.start])
            for part in parts
        ]
        rows = torch.cat(outputs)
        if depth < last:
            rows = rows.relu_()
    return own, rows


def _whole_neighborhood(graph: Graph, part: range) -> Block:
    """The block of all edges into consecutive nodes: pieces of the graph's own arrays."""
    indptr = graph.indptr[part.start : part.stop + 1]
    neighbors = graph.indices[int(indptr[0]) : int(indptr[-1])]
    nodes = torch.arange(part.start, part.stop, device=indptr.device)
    return Block(graph, nodes, (indptr - indptr[0]).to(torch.int32), neighbors, columns=neighbors)


def _gathered(rows: Tensor, size: int) -> Tensor:
    """The rows of all ranks below each other, `size` of each (the last ones' padded)."""
    padded = torch.zeros(size, rows.size(1), dtype=rows.dtype, device=rows.device)
    padded[: len(rows)] = rows
    table = torch.empty(size * dist.get_world_size(), rows.size(1), dtype=rows.dtype, device=rows.device)
    dist.all_gather(list(torch.split(table, size)), padded)
    return table
