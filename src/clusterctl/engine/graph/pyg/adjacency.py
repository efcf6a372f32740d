"""Graphs with a sparse `adj_t` behind PyG's loaders, which read only edges or torch-sparse.

torch's own sparse `adj_t` becomes edges (`without_sparse`): `adj_t[target, source]` is an edge. Its values are kept,
and batches get an `adj_t` of the same layout again. PyG's older loaders take edges or a sparse `adj_t`, and return the
same in their batches (`by_target`).
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.typing import SparseTensor
from torch_geometric.utils import is_torch_sparse_tensor

from clusterctl.engine.graph.blocks import rows_of
from clusterctl.engine.graph.pyg.inputs import check_edge_index
from clusterctl.engine.graph.pyg.relation import Relation
from clusterctl.engine.graph.storage import row_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from clusterctl.engine.graph.storage import EdgeType


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
    """From `edge_index` [2, edges], a sparse tensor of torch, or a SparseTensor of torch-sparse; on the CPU.

    Raises ValueError for edges of nodes that are not there.
    """
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
    check_edge_index(edges, num_nodes, num_nodes)
    sources, targets = edges.to(torch.int64)  # the products below overflow in narrower types
    order = (targets * num_nodes + sources).argsort(stable=True)
    return ByTarget(Relation(row_offsets(targets, num_nodes), sources[order]), order, None, None)


def _like_torch_sparse(offsets: Tensor, sources: Tensor, values: Tensor | None, size: tuple[int, int]) -> Any:
    return SparseTensor(rowptr=offsets, col=sources, value=values, sparse_sizes=size, is_sorted=True, trust_data=True)


_VALUES = "adj_t_values"


@dataclass(frozen=True)
class SparseAgain:
    """A batch transform: turns edges back into an `adj_t` of the same layout, then applies the user's transform."""

    layouts: Mapping[EdgeType | None, torch.layout]
    transform: Callable[[Any], Any] | None

    def __call__(self, batch: Any) -> Any:
        """The batch, changed in place, or the result of the user's transform."""
        for edge_type, store in _stores(batch):
            if edge_type in self.layouts:
                (sources, targets), layout = store["edge_index"].to(torch.int64), self.layouts[edge_type]
                size = tuple(reversed(store.size()))
                order = (targets * size[1] + sources).argsort(stable=True)
                offsets = row_offsets(targets, size[0])
                adjacency = torch.sparse_csr_tensor(offsets, sources[order], store[_VALUES][order], size)
                store["adj_t"] = adjacency if layout == torch.sparse_csr else adjacency.to_sparse(layout=layout)
                del store["edge_index"], store[_VALUES]
        return batch if self.transform is None else self.transform(batch)


def without_sparse(data: Any, transform: Callable[[Any], Any] | None) -> tuple[Any, Callable[[Any], Any] | None]:
    """Data to sample from, and the transform of its batches; both unchanged if no `adj_t` is a torch sparse tensor."""
    if not isinstance(data, Data | HeteroData):
        return data, transform
    layouts = {
        edge_type: store["adj_t"].layout
        for edge_type, store in _stores(data)
        if "adj_t" in store and is_torch_sparse_tensor(store["adj_t"])
    }
    if not layouts:
        return data, transform
    edges = copy(data)
    if isinstance(data, Data):
        edges.num_nodes = data.num_nodes
    for edge_type, store in _stores(edges):
        if edge_type in layouts:
            adjacency = store["adj_t"].to_sparse_csr()  # by target, like the other attributes of edges
            crow, sources = adjacency.crow_indices(), adjacency.col_indices()
            targets = rows_of(crow, sources.numel())
            store["edge_index"], store[_VALUES] = torch.stack([sources, targets]), adjacency.values()
            del store["adj_t"]
    return edges, SparseAgain(layouts, transform)


def _stores(data: Any) -> Iterator[tuple[EdgeType | None, Any]]:
    if isinstance(data, Data):
        yield None, data
    else:
        yield from data.edge_items()
