"""Convolutions in a row, with a ReLU and dropout between two of them."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, cast

from torch import Tensor, nn

from clusterctl.graph.dropout import keyed_dropout
from clusterctl.graph.hashing import Purpose, stream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterctl.graph.blocks import Block
    from clusterctl.graph.layers import Convolution


_PRODUCTS_AN_ADDITION = 5  # of a number of a neighbour's row: it comes from a cache or from memory


class Network(nn.Module):
    """One layer of kind `convolution` between each two neighbouring `widths`."""

    def __init__(self, convolution: Callable[[int, int], nn.Module], widths: Sequence[int], dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(convolution(before, after) for before, after in pairwise(widths))
        self.dropout = dropout
        self._widths = widths

    @property
    def convolutions(self) -> list[Convolution]:
        return cast("list[Convolution]", list(self.layers))

    def gather(self, block: Block, x: Tensor, aggregated: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What the outermost block takes from the features `x` of the whole graph: the part without parameters.

        What the neighbours' rows come to, and the targets' own rows. Where the first layer's aggregation of all
        neighbours is known (`inference.first_aggregation`), it stands for that of the block.
        """
        targets = x.index_select(0, block.nodes)  # on a CPU several times faster than x[nodes]
        if aggregated is not None:
            return aggregated.index_select(0, block.nodes), targets
        return self.convolutions[0].aggregate(block, x, targets), targets

    def forward(
        self, blocks: list[Block], x: Tensor, randomness: tuple[int, ...], aggregated: Tensor | None = None
    ) -> Tensor:
        """The outputs of the last block's nodes; `x` holds the features of the whole graph.

        `randomness` are the numbers that dropout is keyed by: seed, epoch and step.
        """
        return self.transform(blocks, self.gather(blocks[0], x, aggregated), randomness)

    def transform(self, blocks: list[Block], gathered: tuple[Tensor, Tensor], randomness: tuple[int, ...]) -> Tensor:
        """As `forward`, from what was gathered."""
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
    """Whether projecting all rows to `width` before the aggregation is cheaper than projecting what it comes to."""
    added = block.neighbors.numel() * (rows.size(1) - width)
    multiplied = (rows.size(0) - block.nodes.numel()) * rows.size(1) * width
    return added * _PRODUCTS_AN_ADDITION > multiplied
