"""Many small labelled graphs, laid end to end in one set of arrays, and batches cut out of them without a loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Collection:
    """Graph `g` has the nodes from `bounds[g]` up to `bounds[g + 1]`. Edges are kept by target, as in `Graph`."""

    bounds: Tensor  # int64 [graphs + 1]
    indptr: Tensor  # int64 [nodes + 1]
    indices: Tensor  # int32 [edges], sources as node ids of the whole collection
    x: Tensor  # float [nodes, features]; a data set without features has none
    y: Tensor  # int64 [graphs]
    num_classes: int

    @property
    def num_graphs(self) -> int:
        return self.bounds.numel() - 1

    @property
    def num_nodes(self) -> int:
        return self.indptr.numel() - 1

    @property
    def degree(self) -> Tensor:
        """int64 [nodes]: incoming edges."""
        return self.indptr.diff()

    def to(self, device: torch.device) -> Collection:
        """The collection on `device`."""
        bounds, indptr, indices = self.bounds.to(device), self.indptr.to(device), self.indices.to(device)
        return Collection(bounds, indptr, indices, self.x.to(device), self.y.to(device), self.num_classes)

    def batch(self, graphs: Tensor) -> GraphBatch:
        """The graphs with these int64 numbers, in this order; one may be wanted more than once."""
        first = self.bounds[graphs]
        sizes = self.bounds[graphs + 1] - first
        begin = self.indptr[first]
        edges = self.indptr[self.bounds[graphs + 1]] - begin
        bounds, nodes = _ranges(first, sizes)
        edge_bounds, taken = _ranges(begin, edges)
        shift = (bounds[:-1] - first).repeat_interleave(edges, output_size=taken.numel())
        ends = self.indptr[nodes + 1] + (edge_bounds[:-1] - begin).repeat_interleave(sizes, output_size=nodes.numel())
        offsets = torch.cat([ends.new_zeros(1), ends])
        return GraphBatch(nodes, bounds, offsets, self.indices.index_select(0, taken) + shift)


@dataclass(frozen=True)
class GraphBatch:
    """Some graphs of a collection as one graph without edges between them."""

    nodes: Tensor  # int64 [nodes], ids in the collection
    bounds: Tensor  # int64 [graphs + 1], rows of each graph's nodes
    offsets: Tensor  # int64 [nodes + 1], edges into each row
    columns: Tensor  # int64 [edges], source rows

    def neighbor_sum(self, rows: Tensor) -> Tensor:
        """The sum of each node's neighbours' rows, zero where there are none."""
        return F.embedding_bag(self.columns, rows, self.offsets, mode="sum", include_last_offset=True)

    def readout(self, rows: Tensor, mode: str) -> Tensor:
        """The "sum" or "mean" of each graph's rows."""
        every_row = torch.arange(rows.size(0), device=rows.device)
        return F.embedding_bag(every_row, rows, self.bounds, mode=mode, include_last_offset=True)


def joined_graphs(graphs: Sequence[tuple[int, Tensor]]) -> tuple[Tensor, Tensor]:
    """`bounds`, and all edges as int64 [2, edges] with the collection's node ids, of (number of nodes, own edges)."""
    bounds = torch.tensor([0, *(nodes for nodes, _ in graphs)]).cumsum(0)
    return bounds, torch.cat([edges + start for (_, edges), start in zip(graphs, bounds, strict=False)], dim=1)


def _ranges(starts: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """The ranges of these starts and sizes one after the other, and where each begins and the last ends."""
    bounds = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    total = int(bounds[-1])
    shift = (starts - bounds[:-1]).repeat_interleave(sizes, output_size=total)
    return bounds, torch.arange(total, device=starts.device) + shift
