"""The graph of PyG's older loaders, which take edges or a sparse `adj_t` and return the same in their batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import is_torch_sparse_tensor

from clusterctl.engine.graph.pyg.relation import Relation
from clusterctl.engine.graph.storage import row_offsets

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class ByTarget:
    """Edges by target, and by source within a target."""

    relation: Relation
    e_id: Tensor  # int64 [edges]: the index of each edge in `edge_index`, or in the rows of `adj_t`
    values: Tensor | None  # of `adj_t`
    sparse: Callable[[Tensor, Tensor, Tensor | None, tuple[int, int]], Any] | None  # builds a matrix like `adj_t`

    @property
    def num_nodes(self) -> int:
        return self.relation.indptr.numel() - 1


def by_target(edges: Any, num_nodes: int) -> ByTarget:
    """From `edge_index` [2, edges], a sparse tensor of torch, or a SparseTensor of torch-sparse; on the CPU."""
    edges = edges.cpu()
    if isinstance(edges, SparseTensor):
        offsets, sources, values = edges.csr()
        return ByTarget(Relation(offsets, sources), torch.arange(sources.numel()), values, _like_torch_sparse)
    if is_torch_sparse_tensor(edges):
        rows, layout = edges.to_sparse_csr(), edges.layout
        relation = Relation(rows.crow_indices().to(torch.int64), rows.col_indices().to(torch.int64))

        def like(offsets: Tensor, sources: Tensor, values: Tensor | None, size: tuple[int, int]) -> Tensor:
            assert values is not None
            found = torch.sparse_csr_tensor(offsets, sources, values, size)
            return found if layout == torch.sparse_csr else found.to_sparse(layout=layout)

        return ByTarget(relation, torch.arange(relation.indices.numel()), rows.values(), like)
    sources, targets = edges
    order = (targets * num_nodes + sources).argsort(stable=True)
    return ByTarget(Relation(row_offsets(targets, num_nodes), sources[order]), order, None, None)


def _like_torch_sparse(offsets: Tensor, sources: Tensor, values: Tensor | None, size: tuple[int, int]) -> Any:
    return SparseTensor(rowptr=offsets, col=sources, value=values, sparse_sizes=size, is_sorted=True, trust_data=True)
