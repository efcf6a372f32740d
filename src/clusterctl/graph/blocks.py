"""One hop of a sampled neighbourhood: a bipartite piece of the graph from source rows to target nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from torch.nn import functional as F

if TYPE_CHECKING:
    from torch import Tensor


class Adjacency(Protocol):
    """Edges by target (CSC): a `Graph`, or one `Relation` of a heterogeneous graph."""

    @property
    def indptr(self) -> Tensor:
        """int64 [targets + 1]."""

    @property
    def indices(self) -> Tensor:
        """int32 [edges], sources; ascending for each target."""

    @property
    def degree(self) -> Tensor:
        """int64 [targets]: incoming edges."""


@dataclass(frozen=True)
class Block:
    """The sampled edges into `nodes`, by target: those of `nodes[i]` are `offsets[i]` up to `offsets[i + 1]`.

    `columns` says in which row of the source table each neighbour's values stand. In the outermost block the source
    table is the graph's own features and `columns` are the neighbours themselves, so nothing is gathered or renumbered;
    in the others its first rows are those of `nodes`.
    """

    graph: Adjacency
    nodes: Tensor  # int64 [targets]
    offsets: Tensor  # int32 [targets + 1]
    neighbors: Tensor  # int32 [edges], node ids
    columns: Tensor  # int32 [edges], rows of the source table

    def mean(self, table: Tensor) -> Tensor:
        """The mean of the neighbours' rows, zero where there are none. Makes no tensor of edges x channels."""
        return F.embedding_bag(self.columns, table, self.offsets, mode="mean", include_last_offset=True)

    def weighted_sum(self, table: Tensor, weights: Tensor) -> Tensor:
        """The sum of the neighbours' rows, each times its edge's weight."""
        return F.embedding_bag(
            self.columns, table, self.offsets, mode="sum", per_sample_weights=weights, include_last_offset=True
        )
