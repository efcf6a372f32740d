"""Graph convolutions on blocks, and networks of them.

A layer accepts the neighbours' rows in two forms, with the same result: unprojected (`forward`), or already projected
by `send` where that is narrower (`receive`). Projection and aggregation are both linear.

Graph isomorphism networks classify whole graphs (`GinConv`, `Gin`): Xu et al., "How powerful are graph neural
networks?" (2019). Features do not change during training, so their first neighbourhood sum is precomputed: the networks
take it as input instead of the features (`first_sum`). Many of its rows are equal (85 of 100 in IMDB-BINARY), and the
first layer computes each distinct row only once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from clusterctl.engine.graph.blocks import Linear, linear, moved
from clusterctl.engine.graph.collection import Collection, GraphBatch, Rows, sum_rows
from clusterctl.engine.graph.hashing import Purpose, draws, stream
from clusterctl.engine.graph.masks import keyed_dropout

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


_ROWS_AT_ONCE = 1 << 16


class GinConv(nn.Module):
    """`network(h_v + sum h_u)`, like PyG's GINConv with its default epsilon of zero."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, batch: GraphBatch, rows: Tensor) -> Tensor:
        return self.network(rows + batch.neighbor_sum(rows))  # type: ignore[no-any-return]


def first_sum(collection: Collection, features: Tensor) -> Distinct:
    """`h_v + sum h_u` of the features [nodes, channels] of the whole collection."""
    everything = collection.batch(torch.arange(collection.num_graphs))
    return distinct(features + everything.neighbor_sum(features))


@dataclass(frozen=True)
class Distinct:
    """A table whose row `i` is `rows[of[i]]`: equal rows are stored once.

    `of` is on the CPU, `rows` on the device that uses them.
    """

    rows: Tensor  # [distinct, channels]
    of: Tensor  # int64 [rows]

    def select(self, wanted: Tensor) -> Copied:
        """The table's rows with these int64 numbers, deduplicated."""
        of = self.of.numpy()[wanted.numpy()]
        order = of.argsort(kind="stable")
        is_first = np.diff(of[order], prepend=-1) != 0
        place = np.empty_like(order)
        place[order] = is_first.cumsum() - 1
        bounds = np.append(is_first.nonzero()[0], order.size)
        which = of[order[bounds[:-1]]]
        found = moved(map(torch.from_numpy, (which, place, bounds, order)), self.rows.device)
        return Copied(self.rows.index_select(0, found[0]), found[1], (found[2], found[3]))

    def select_all(self, wanted: Tensor) -> Copied:
        """Like `select`, but without deduplication, for when little is computed per row."""
        (which,) = moved([self.of.index_select(0, wanted)], self.rows.device)
        return Copied(self.rows.index_select(0, which))


@dataclass(frozen=True)
class Copied:
    """Row `i` is `rows[place[i]]`; without `place` it is `rows[i]`."""

    rows: Tensor  # [distinct, channels]
    place: Tensor | None = None  # int64 [all]
    copies: Rows | None = None  # for each of `rows`, the `i` that refer to it

    def spread(self, values: Tensor) -> Tensor:
        """Expand `values` [distinct, any] of the distinct rows to all rows."""
        if self.place is None:
            return values
        return _Spread.apply(values, self.place, self.copies)  # type: ignore[no-any-return, no-untyped-call]


class _Spread(torch.autograd.Function):
    """Its gradient is a segment sum; torch's own adds row by row, in random order on a GPU."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, place: Tensor, copies: Rows) -> Tensor:
        ctx.copies = copies
        return values.index_select(0, place)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return sum_rows(ctx.copies, gradients[0].contiguous()), None, None


def distinct(rows: Tensor) -> Distinct:
    """Deduplicate these float rows [rows, channels]."""
    factors = draws(0, torch.arange(rows.size(1), device=rows.device))
    bits = {4: torch.int32, 8: torch.int64}[rows.element_size()]
    keys = [(part.view(bits) * factors).sum(1) for part in torch.split(rows.contiguous(), _ROWS_AT_ONCE)]
    different, of = torch.unique(torch.cat(keys), return_inverse=True)
    number = torch.arange(of.numel(), device=of.device)
    found = Distinct(rows[torch.empty_like(different).scatter_(0, of, number)], of)
    collided = not torch.equal(found.rows.index_select(0, of), rows)
    return Distinct(rows, number) if collided else found


class PlainGin(nn.Module):
    """Convolutions with one linear layer each; the readout of the last one gives the class scores."""

    def __init__(self, inputs: int, hidden: int, classes: int, layers: int, readout: str) -> None:
        super().__init__()
        widths = [inputs, *[hidden] * (layers - 1), classes]
        self.layers = nn.ModuleList(GinConv(Linear(*pair)) for pair in pairwise(widths))
        self.readout, self.dropout = readout, 0.0

    def forward(self, batch: GraphBatch, summed: Copied, randomness: tuple[int, ...]) -> Tensor:  # noqa: ARG002
        first, *others = self.layers
        rows = summed.spread(cast("GinConv", first).network(summed.rows))
        for layer in others:
            rows = layer(batch, rows.relu())
        return batch.readout(rows, self.readout)


class Gin(nn.Module):
    """Convolutions with two-layer perceptrons; the readout of every layer contributes to the scores, as in the paper.

    Rows are normalised individually (LayerNorm), not over the batch as in the paper: batch statistics would depend on
    the number of ranks and include the padding of the last step.
    """

    def __init__(self, inputs: int, hidden: int, classes: int, layers: int, readout: str, dropout: float = 0.0) -> None:
        super().__init__()
        widths = [inputs, *[hidden] * (layers - 1)]
        self.layers = nn.ModuleList()
        for width in widths:
            into = Linear(width, hidden), nn.LayerNorm(hidden), nn.ReLU()
            self.layers.append(GinConv(nn.Sequential(*into, Linear(hidden, hidden), nn.LayerNorm(hidden), nn.ReLU())))
        self.scores = nn.ModuleList(Linear(hidden, classes) for _ in widths)
        self.readout, self.dropout = readout, dropout

    def forward(self, batch: GraphBatch, summed: Copied, randomness: tuple[int, ...]) -> Tensor:
        """The scores [graphs, classes]; `summed` is the `first_sum` of the batch's nodes, `randomness` keys dropout."""
        rows, total = summed.rows, summed.rows.new_zeros(())
        for depth, (layer, scores) in enumerate(zip(self.layers, self.scores, strict=True)):
            rows = layer(batch, rows) if depth else summed.spread(cast("GinConv", layer).network(rows))
            if self.training:
                rows = keyed_dropout(rows, batch.nodes, self.dropout, stream(Purpose.DROPOUT, *randomness, depth))
            total = total + scores(batch.readout(rows, self.readout))
        return total
