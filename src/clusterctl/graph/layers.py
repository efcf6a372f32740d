"""Graph convolutions on blocks.

A layer can take what the neighbours send in two forms, with the same result: their plain rows (`forward`), or, where
that is narrower, rows that `send` has projected already (`receive`): projection and aggregation are both linear.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from clusterctl.graph.products import Linear, linear

if TYPE_CHECKING:
    from clusterctl.graph.blocks import Block


class Convolution(Protocol):
    """What `Network` and `inference` ask of a layer."""

    def __call__(self, block: Block, table: Tensor, targets: Tensor) -> Tensor:
        """The new rows [targets, out] from the source table [rows, in] and the targets' own rows [targets, in]."""

    def aggregate(self, block: Block, table: Tensor, targets: Tensor) -> Tensor:
        """The part of a call that has no parameters: what the neighbours' rows come to."""

    def combine(self, aggregated: Tensor, targets: Tensor) -> Tensor:
        """The other part: a call is `combine(aggregate(block, table, targets), targets)`."""

    def send(self, rows: Tensor) -> Tensor:
        """What these rows send to their neighbours: projected, or as they are, whichever is narrower."""

    def receive(self, block: Block, sent: Tensor, targets: Tensor) -> Tensor:
        """As a call, from a source table that went through `send`."""


class SageConv(nn.Module):
    """GraphSAGE with the mean of the neighbours (Hamilton et al., "Inductive representation learning on large graphs").

    `W_neighbor mean(h_u) + b + W_root h_v`, as PyG's SAGEConv; an isolated node's mean is zero.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self._projects_first = out_channels < in_channels
        self.neighbor = Linear(in_channels, out_channels)
        self.root = Linear(in_channels, out_channels, bias=False)

    def forward(self, block: Block, table: Tensor, targets: Tensor) -> Tensor:
        return self.combine(self.aggregate(block, table, targets), targets)

    def aggregate(self, block: Block, table: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG002 - of the protocol
        return block.mean(table)

    def combine(self, aggregated: Tensor, targets: Tensor) -> Tensor:
        out: Tensor = self.neighbor(aggregated) + self.root(targets)
        return out

    def send(self, rows: Tensor) -> Tensor:
        return linear(rows, self.neighbor.weight) if self._projects_first else rows

    def receive(self, block: Block, sent: Tensor, targets: Tensor) -> Tensor:
        if not self._projects_first:
            return self(block, sent, targets)  # type: ignore[no-any-return]
        out: Tensor = block.mean(sent) + self.neighbor.bias + self.root(targets)
        return out


class GcnConv(nn.Module):
    """A graph convolution (Kipf and Welling, "Semi-supervised classification with graph convolutional networks").

    `W (sum h_u / sqrt(d_u d_v) + h_v / d_v) + b`, as PyG's GCNConv on all neighbours of a graph without self loops.
    `d` counts the neighbours in the whole graph and the node itself: with a sample's degrees, training and full-graph
    inference would weigh differently. For the same reason `k` sampled ones of `n` neighbours count `n / k` times.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self._projects_first = out_channels < in_channels
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels))
        self.bias = nn.Parameter(torch.zeros(out_channels))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, block: Block, table: Tensor, targets: Tensor) -> Tensor:
        return self.combine(self.aggregate(block, table, targets), targets)

    def aggregate(self, block: Block, table: Tensor, targets: Tensor) -> Tensor:
        return _normalized_sum(block, table, targets)

    def combine(self, aggregated: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG002 - of the protocol
        return linear(aggregated, self.weight, self.bias)

    def send(self, rows: Tensor) -> Tensor:
        return linear(rows, self.weight) if self._projects_first else rows

    def receive(self, block: Block, sent: Tensor, targets: Tensor) -> Tensor:
        if not self._projects_first:
            return self(block, sent, targets)  # type: ignore[no-any-return]
        return _normalized_sum(block, sent, linear(targets, self.weight)) + self.bias


def _normalized_sum(block: Block, table: Tensor, targets: Tensor) -> Tensor:
    degree = block.graph.degree
    exact = torch.promote_types(table.dtype, torch.float32)  # bfloat16 counts only to 256
    of_target = degree.index_select(0, block.nodes).to(exact)
    of_neighbors = degree.index_select(0, block.neighbors).to(exact).add_(1).rsqrt_()
    scale = of_target / block.sampled.clamp(min=1) * (of_target + 1).rsqrt()
    summed = block.weighted_sum(table, of_neighbors.to(table.dtype))
    return torch.addcmul(targets / (of_target + 1)[:, None], summed, scale[:, None])
