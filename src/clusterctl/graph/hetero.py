"""Heterogeneous graphs: nodes and edges of several types, stored and shared as `storage` does it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import torch
    from torch import Tensor

EdgeType = tuple[str, str, str]
"""The type of the source, the name of the relation, the type of the target; as PyG writes it."""


@dataclass(frozen=True)
class Relation:
    """The edges of one type, by target: the sources of `v` are `indices[indptr[v]:indptr[v + 1]]`."""

    indptr: Tensor  # int64 [targets + 1]
    indices: Tensor  # int32 [edges], sources; ascending for each target

    @cached_property
    def degree(self) -> Tensor:
        """int64 [targets]: incoming edges."""
        return self.indptr.diff()


@dataclass(frozen=True)
class HeteroGraph:
    """`indptr` and `indices` of each relation as in `Relation`; features for the node types that have any."""

    num_nodes: dict[str, int]
    indptr: dict[EdgeType, Tensor]
    indices: dict[EdgeType, Tensor]
    x: dict[str, Tensor]  # float [nodes, features]

    @property
    def edge_types(self) -> list[EdgeType]:
        return list(self.indptr)

    @property
    def num_edges(self) -> int:
        return sum(indices.numel() for indices in self.indices.values())

    def relation(self, edge_type: EdgeType) -> Relation:
        """The edges of this type."""
        return Relation(self.indptr[edge_type], self.indices[edge_type])

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        """The graph on `device`, features as `dtype`; on the CPU nothing is copied that is there already."""
        return replace(
            self,
            indptr={edge_type: indptr.to(device) for edge_type, indptr in self.indptr.items()},
            indices={edge_type: indices.to(device) for edge_type, indices in self.indices.items()},
            x={node_type: x.to(device, dtype) for node_type, x in self.x.items()},
        )
