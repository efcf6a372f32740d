"""A hop as seen by a user-defined model: edges between rows of one table, in the format of PyG's layers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clusterctl.graph.attention import Neighborhoods
from clusterctl.graph.blocks import edge_ranges
from clusterctl.graph.hashing import Purpose, keyed_dropout, stream
from clusterctl.graph.neighbors import renumbered
from clusterctl.graph.slices import slices

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterctl.graph.blocks import Adjacency, Block


@dataclass(frozen=True)
class Hop:
    """The input of one layer, which computes new rows for the first `targets` rows from the rows at their edges.

    With `x` the input, PyG's bipartite convolutions take `((x, x[:hop.targets]), hop.edge_index)`.
    """

    edge_index: Tensor  # int64 [2, edges]: the row of the source, the row of the target; ascending by target
    targets: int
    nodes: Tensor  # int64 [rows]: the graph node of each row
    degree: Tensor  # int64 [targets]: the number of neighbours in the whole graph; the edges may be a sample
    neighborhoods: Neighborhoods  # the same edges, by target
    randomness: tuple[int, ...] | None = None  # of the step and layer; None in evaluation

    def dropout(self, rows: Tensor, share: float, number: int = 0) -> Tensor:
        """Dropout of a `share` of the values of `rows`, which are the input's or the targets'; a no-op in evaluation.

        The mask depends on the node and the step, not on the rank; torch's own dropout changes with the number of
        ranks. A second dropout in the same layer needs a different `number`.
        """
        if self.randomness is None or not share:
            return rows
        return keyed_dropout(rows, self.nodes[: len(rows)], share, stream(Purpose.DROPOUT, *self.randomness, number))


def sampled_hops(blocks: Sequence[Block], randomness: tuple[int, ...] | None) -> list[Hop]:
    """The hops of a sample in the order of the layers. The outermost block has no edges, only the nodes to read."""
    hops = []
    for number, (before, block) in enumerate(pairwise(blocks)):
        degree = block.graph.degree.index_select(0, block.nodes)
        key = None if randomness is None else (*randomness, number)
        hops.append(_hop(block.rows, block.offsets, before.nodes, degree, key, block.edge_mask))
    return hops


def whole_hops(graph: Adjacency, own: range, most_edges: int, most_targets: int | None = None) -> Iterator[Hop]:
    """All edges into the nodes `own`, in hops of at most `most_targets`, and `most_edges` unless one node has more."""
    bounds = graph.indptr[own.start : own.stop + 1]
    for start, stop in _pieces(bounds, most_edges, most_targets):
        targets = torch.arange(own.start + start, own.start + stop, device=bounds.device)
        nodes, columns = renumbered(targets, graph.indices[int(bounds[start]) : int(bounds[stop])])
        offsets = (bounds[start : stop + 1] - bounds[start]).to(torch.int32)
        yield _hop(columns, offsets, nodes, bounds[start : stop + 1].diff())


def whole_neighborhoods(
    graph: Adjacency, own: range, most_edges: int, most_targets: int | None = None
) -> Iterator[tuple[slice, Neighborhoods]]:
    """All edges into the nodes `own`, in the pieces of `whole_hops`, and the slice of `own` of each piece.

    Their table has a row for every node: nothing is renumbered. There is at least one piece, possibly empty.
    """
    bounds = graph.indptr[own.start : own.stop + 1]
    for start, stop in list(_pieces(bounds, most_edges, most_targets)) or [(0, 0)]:
        targets = torch.arange(own.start + start, own.start + stop, device=bounds.device)
        columns = graph.indices[int(bounds[start]) : int(bounds[stop])]
        offsets = (bounds[start : stop + 1] - bounds[start]).to(torch.int32)
        yield slice(start, stop), Neighborhoods(columns, offsets, targets)


def _pieces(bounds: Tensor, most_edges: int, most_targets: int | None) -> Iterator[tuple[int, int]]:
    for start, stop in edge_ranges(bounds, most_edges):
        for part in slices(stop - start, most_targets or stop - start):
            yield start + part.start, start + part.stop


def _hop(
    columns: Tensor,
    offsets: Tensor,
    nodes: Tensor,
    degree: Tensor,
    randomness: tuple[int, ...] | None = None,
    edge_mask: Tensor | None = None,
) -> Hop:
    """The hop of these edges (`Block.rows`, `offsets`, `edge_mask`); the targets are the first of `nodes`."""
    targets = torch.arange(degree.numel(), device=columns.device)
    neighborhoods = Neighborhoods(columns, offsets, targets, edge_mask)
    edge_index = torch.stack([columns.to(torch.int64), neighborhoods.targets()])
    return Hop(edge_index, degree.numel(), nodes, degree, neighborhoods, randomness)
