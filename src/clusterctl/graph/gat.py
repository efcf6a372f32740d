"""The graph attention network for `train.model = "gat"`: one GATv2 layer per hop."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch import Tensor, nn
from torch.nn import functional as F

from clusterctl.graph.attention import GatConv, dropped
from clusterctl.graph.hashing import Purpose, stream

if TYPE_CHECKING:
    from clusterctl.graph.attention import Neighborhoods
    from clusterctl.graph.hops import Hop
    from clusterctl.spec import GatOptions

_ATTENTION = 1  # the number of the second dropout in a layer, see `Hop.dropout`


class Gat(nn.Module):
    """One `GatConv` per hop, with ELU and dropout in between; the last layer averages its heads.

    Evaluation calls a layer in two halves, `send` and `receive`, so that every row is projected only once for all its
    neighbours.
    """

    def __init__(self, features: int, classes: int, layers: int, options: GatOptions) -> None:
        super().__init__()
        widths = [features, *[options.heads * options.hidden] * (layers - 1)]
        residual = options.residual
        hidden = [GatConv(width, options.hidden, options.heads, residual=residual) for width in widths[:-1]]
        last = GatConv(widths[-1], classes, options.output_heads, mean=True, residual=residual)
        self.layers = nn.ModuleList([*hidden, last])
        self._options = options

    def layer(self, i: int, hop: Hop, x: Tensor) -> Tensor:
        """The new rows of the hop's targets, the first rows of `x` [rows, channels]."""
        if i > 0:
            x = hop.dropout(x, self._options.dropout)
        edges = self._edges(hop.neighborhoods)
        return self._received(i, edges, self.send(i, x), x[: hop.targets], self._factors(i, hop, edges))

    def send(self, i: int, x: Tensor) -> Tensor:
        """The messages of the rows `x` to their neighbours in layer `i`."""
        return self._convolution(i).send(x)

    def receive(self, i: int, edges: Neighborhoods, sent: Tensor, x: Tensor) -> Tensor:
        """The new rows of the targets with rows `x`, from the table `sent` of their neighbours' messages."""
        return self._received(i, self._edges(edges), sent, x, None)

    def _received(self, i: int, edges: Neighborhoods, sent: Tensor, x: Tensor, factors: Tensor | None) -> Tensor:
        rows = self._convolution(i).receive(edges, sent, x, factors)
        return rows if i == len(self.layers) - 1 else F.elu(rows)

    def _edges(self, edges: Neighborhoods) -> Neighborhoods:
        return edges.with_self_loops() if self._options.self_loops else edges

    def _factors(self, i: int, hop: Hop, edges: Neighborhoods) -> Tensor | None:
        """The factors of attention dropout, or None."""
        share = self._options.attention_dropout
        if hop.randomness is None or not share:
            return None
        sources, targets = (hop.nodes.index_select(0, rows) for rows in (edges.columns, edges.targets()))
        key = stream(Purpose.DROPOUT, *hop.randomness, _ATTENTION)
        return dropped(sources, targets, self._convolution(i).attention, share, key)

    def _convolution(self, i: int) -> GatConv:
        return cast("GatConv", self.layers[i])
