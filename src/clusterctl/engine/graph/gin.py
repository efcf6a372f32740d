"""Graph isomorphism networks, which classify whole graphs.

Xu et al., "How powerful are graph neural networks?" (2019). Features do not change during training, so their first
neighbourhood sum is precomputed: the networks take it as input instead of the features (`first_sum`). Many of its rows
are equal (85 of 100 in IMDB-BINARY), and the first layer computes each distinct row only once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from clusterctl.engine.graph.blocks import Linear, moved
from clusterctl.engine.graph.collection import Collection, GraphBatch, Rows, sum_rows
from clusterctl.engine.graph.hashing import Purpose, draws, keyed_dropout, stream

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
        which, place, counts = torch.unique(self.of.index_select(0, wanted), return_inverse=True, return_counts=True)
        bounds = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        found = moved((which, place, bounds, place.argsort(stable=True)), self.rows.device)
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
        self._readout = readout

    def forward(self, batch: GraphBatch, summed: Copied, randomness: tuple[int, ...]) -> Tensor:  # noqa: ARG002
        first, *others = self.layers
        rows = summed.spread(cast("GinConv", first).network(summed.rows))
        for layer in others:
            rows = layer(batch, rows.relu())
        return batch.readout(rows, self._readout)


class Gin(nn.Module):
    """Convolutions with two-layer perceptrons; the readout of every layer contributes to the scores, as in the paper.

    Rows are normalised individually (LayerNorm), not over the batch as in the paper: batch statistics would depend on
    the number of ranks and include the padding of the last step.
    """

    def __init__(self, inputs: int, hidden: int, classes: int, layers: int, readout: str, dropout: float = 0.0) -> None:
        super().__init__()
        widths = [inputs, *[hidden] * (layers - 1)]
        self.layers = nn.ModuleList(GinConv(_perceptron(width, hidden)) for width in widths)
        self.scores = nn.ModuleList(Linear(hidden, classes) for _ in widths)
        self._readout, self._dropout = readout, dropout

    def forward(self, batch: GraphBatch, summed: Copied, randomness: tuple[int, ...]) -> Tensor:
        """The scores [graphs, classes]; `summed` is the `first_sum` of the batch's nodes, `randomness` keys dropout."""
        rows, total = summed.rows, summed.rows.new_zeros(())
        for depth, (layer, scores) in enumerate(zip(self.layers, self.scores, strict=True)):
            rows = layer(batch, rows) if depth else summed.spread(cast("GinConv", layer).network(rows))
            if self.training:
                rows = keyed_dropout(rows, batch.nodes, self._dropout, stream(Purpose.DROPOUT, *randomness, depth))
            total = total + scores(batch.readout(rows, self._readout))
        return total


def _perceptron(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        Linear(inputs, outputs),
        nn.LayerNorm(outputs),
        nn.ReLU(),
        Linear(outputs, outputs),
        nn.LayerNorm(outputs),
        nn.ReLU(),
    )
