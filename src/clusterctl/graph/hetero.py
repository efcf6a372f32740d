"""Heterogeneous graphs: nodes and edges of several types, stored and shared as `storage` does it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

from clusterctl.graph.storage import compressed

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch_geometric.data import HeteroData

EdgeType = tuple[str, str, str]
"""The type of the source, the name of the relation, the type of the target; as PyG writes it."""


@dataclass(frozen=True)
class Relation:
    """The edges of one type, by target: the sources of `v` are `indices[indptr[v]:indptr[v + 1]]`."""

    indptr: Tensor  # int64 [targets + 1]
    indices: Tensor  # int32 [edges], sources; ascending for each target

    @property
    def num_targets(self) -> int:
        return self.indptr.numel() - 1

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


def from_hetero_data(data: HeteroData) -> HeteroGraph:
    """The nodes, edges and features of PyG's HeteroData, by target; repeated edges are kept."""
    num_nodes = {node_type: int(data[node_type].num_nodes) for node_type in data.node_types}
    parts = {
        edge_type: compressed(data[edge_type].edge_index, num_nodes[edge_type[2]], num_nodes[edge_type[0]])
        for edge_type in data.edge_types
    }
    return HeteroGraph(
        num_nodes=num_nodes,
        indptr={edge_type: indptr for edge_type, (indptr, _) in parts.items()},
        indices={edge_type: indices for edge_type, (_, indices) in parts.items()},
        x={node_type: data[node_type].x for node_type in data.node_types if "x" in data[node_type]},
    )
