"""Heterogeneous graphs: nodes and edges of several types, stored and shared as `storage` does it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from clusterctl.graph.blocks import Adjacency

if TYPE_CHECKING:
    import torch
    from torch import Tensor

EdgeType = tuple[str, str, str]
"""The type of the source, the name of the relation, the type of the target; as PyG writes it."""


@dataclass(frozen=True)
class HeteroGraph:
    """`indptr` and `indices` of each relation as in `Adjacency`; features for the node types that have any."""

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

    def relation(self, edge_type: EdgeType) -> Adjacency:
        """The edges of this type."""
        return Adjacency(self.indptr[edge_type], self.indices[edge_type])

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        """The graph on `device`, features as `dtype`; on the CPU nothing is copied that is there already."""
        return replace(
            self,
            indptr={edge_type: indptr.to(device) for edge_type, indptr in self.indptr.items()},
            indices={edge_type: indices.to(device) for edge_type, indices in self.indices.items()},
            x={node_type: x.to(device, dtype) for node_type, x in self.x.items()},
        )
