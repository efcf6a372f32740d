"""Graph convolutions on blocks, and networks of them.

A layer accepts the neighbours' rows in two forms, with the same result: unprojected (`forward`), or already projected
by `send` where that is narrower (`receive`). Projection and aggregation are both linear.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from clusterctl.engine.graph.blocks import Linear, linear
from clusterctl.engine.graph.hashing import Purpose, keyed_dropout, stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterctl.engine.graph.blocks import Block

_PRODUCTS_PER_ADDITION = 5  # adding a neighbour's value is as slow, as it comes from a cache or memory


class Convolution(nn.Module):
    """The interface that `Network` and `inference` use. `weight` projects the neighbours' rows."""

    weight: Tensor

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.projects_first = out_channels < in_channels

    def forward(self, block: Block, table: Tensor, targets: Tensor) -> Tensor:
        """The new rows [targets, out] from the source table [rows, in] and the targets' own rows [targets, in]."""
        return self.combine(self.aggregate(block, table, targets), targets)

    def aggregate(self, block: Block, table: Tensor, targets: Tensor) -> Tensor:
        """The part of the forward without parameters: the aggregated neighbour features."""
        raise NotImplementedError

    def combine(self, aggregated: Tensor, targets: Tensor) -> Tensor:
        """The rest: the forward is `combine(aggregate(block, table, targets), targets)`."""
        raise NotImplementedError

    def send(self, rows: Tensor) -> Tensor:
        """The messages of these rows to their neighbours: projected or unprojected, whichever is narrower."""
        return linear(rows, self.weight) if self.projects_first else rows

    def receive(self, block: Block, sent: Tensor, targets: Tensor) -> Tensor:
        """Like `forward`, from the output of `send`."""
        if self.projects_first:
            return self.from_projected(block, sent, targets)
        return self(block, sent, targets)  # type: ignore[no-any-return]

    def from_projected(self, block: Block, projected: Tensor, targets: Tensor) -> Tensor:
        """Like `forward`, from a source table that was projected by `weight`."""
        raise NotImplementedError


class SageConv(Convolution):
    """GraphSAGE with the mean of the neighbours (Hamilton et al., "Inductive representation learning on large graphs").

    `W_neighbor mean(h_u) + b + W_root h_v`, like PyG's SAGEConv; an isolated node's mean is zero.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels)
        self.neighbor = Linear(in_channels, out_channels)
        self.root = Linear(in_channels, out_channels, bias=False)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return self.neighbor.weight

    def aggregate(self, block: Block, table: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG002 - of the base class
        return block.mean(table)

    def combine(self, aggregated: Tensor, targets: Tensor) -> Tensor:
        out: Tensor = self.neighbor(aggregated) + self.root(targets)
        return out

    def from_projected(self, block: Block, projected: Tensor, targets: Tensor) -> Tensor:
        out: Tensor = block.mean(projected) + self.neighbor.bias + self.root(targets)
        return out


class GcnConv(Convolution):
    """A graph convolution (Kipf and Welling, "Semi-supervised classification with graph convolutional networks").

    `W (sum h_u / sqrt(d_u d_v) + h_v / d_v) + b`, like PyG's GCNConv on all neighbours.
    `d` counts the neighbours in the whole graph and the node itself: with a sample's degrees, training and full-graph
    inference would use different weights. For the same reason `k` sampled neighbours out of `n` count `n / k` times.
    As there, each node has exactly one self loop, however many the data has; other repeated edges count each time.
    """

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels)
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels))
        self.bias = nn.Parameter(torch.zeros(out_channels))
        nn.init.xavier_uniform_(self.weight)

    def aggregate(self, block: Block, table: Tensor, targets: Tensor) -> Tensor:
        return _normalized_sum(block, table, targets)

    def combine(self, aggregated: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG002 - of the base class
        return linear(aggregated, self.weight, self.bias)

    def from_projected(self, block: Block, projected: Tensor, targets: Tensor) -> Tensor:
        return _normalized_sum(block, projected, linear(targets, self.weight)) + self.bias


def _normalized_sum(block: Block, table: Tensor, targets: Tensor) -> Tensor:
    degree, others = block.graph.degree, block.graph.degree_without_loops
    exact = torch.promote_types(table.dtype, torch.float32)  # bfloat16 cannot count beyond 256
    of_target = degree.index_select(0, block.nodes).to(exact)
    of_neighbors = others.index_select(0, block.neighbors).to(exact).add_(1).rsqrt_()
    of_neighbors.masked_fill_(block.is_loop, 0.0)
    of_itself = others.index_select(0, block.nodes).to(exact).add_(1)
    scale = of_target / block.sampled.clamp(min=1) * of_itself.rsqrt()
    summed = block.weighted_sum(table, of_neighbors.to(table.dtype))
    return torch.addcmul(targets / of_itself[:, None], summed, scale[:, None])


class Network(nn.Module):
    """One convolution for each pair of adjacent `widths`, with ReLU and dropout in between."""

    def __init__(self, convolution: Callable[[int, int], nn.Module], widths: Sequence[int], dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(convolution(before, after) for before, after in pairwise(widths))
        self.dropout = dropout
        self._widths = widths

    @property
    def convolutions(self) -> list[Convolution]:
        return cast("list[Convolution]", list(self.layers))

    def gather(self, block: Block, x: Tensor, aggregated: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The outermost block's input from the features `x` of the whole graph; it involves no parameters.

        Returns the aggregated neighbour features and the targets' own rows. A precomputed aggregation of all neighbours
        (`inference.first_aggregation`) replaces that of the block.
        """
        targets = x.index_select(0, block.nodes)  # on a CPU several times faster than x[nodes]
        if aggregated is not None:
            return aggregated.index_select(0, block.nodes), targets
        return self.convolutions[0].aggregate(block, x, targets), targets

    def gather_own(self, block: Block, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Like `gather`, from the `rows` of the block's own source table, which begins with its targets."""
        targets = rows[: block.nodes.numel()]
        return self.convolutions[0].aggregate(block, rows, targets), targets

    def forward(
        self, blocks: list[Block], x: Tensor, randomness: tuple[int, ...], aggregated: Tensor | None = None
    ) -> Tensor:
        """The outputs of the last block's nodes; `x` holds the features of the whole graph.

        `randomness` holds the numbers that key dropout: seed, epoch and step.
        """
        return self.transform(blocks, self.gather(blocks[0], x, aggregated), randomness)

    def transform(self, blocks: list[Block], gathered: tuple[Tensor, Tensor], randomness: tuple[int, ...]) -> Tensor:
        """Like `forward`, from the output of `gather`."""
        first, *others = self.convolutions
        rows = first.combine(*gathered)
        for depth, (layer, block, width) in enumerate(zip(others, blocks[1:], self._widths[2:], strict=True)):
            rows = rows.relu()
            if self.training:
                key = stream(Purpose.DROPOUT, *randomness, depth)
                rows = keyed_dropout(rows, blocks[depth].nodes, self.dropout, key)
            targets = rows[: block.nodes.numel()]
            if _worth_projecting(block, rows, width):
                rows = layer.receive(block, layer.send(rows), targets)
            else:
                rows = layer(block, rows, targets)
        return rows


def _worth_projecting(block: Block, rows: Tensor, width: int) -> bool:
    """Whether projecting all rows to `width` before the aggregation is cheaper than projecting its result."""
    added = block.neighbors.numel() * (rows.size(1) - width)
    multiplied = (rows.size(0) - block.nodes.numel()) * rows.size(1) * width
    return added * _PRODUCTS_PER_ADDITION > multiplied
