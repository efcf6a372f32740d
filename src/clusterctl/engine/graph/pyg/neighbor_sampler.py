"""PyG's old NeighborSampler: bipartite graphs, whose every hop samples all nodes found so far again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch_geometric.loader.neighbor_sampler import Adj, EdgeIndex

from clusterctl.engine.graph.blocks import rows_of
from clusterctl.engine.graph.hashing import Purpose, stream
from clusterctl.engine.graph.pyg.adjacency import by_target
from clusterctl.engine.graph.pyg.epoch_key import EpochKey, digest
from clusterctl.engine.graph.pyg.relation import Draw, kernels, sample_edges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class NeighborSampler(DataLoader):  # type: ignore[type-arg]
    """Batches (batch_size, n_id, adjs), the deepest hop's graph first, like torch_geometric.loader.NeighborSampler."""

    def __init__(
        self,
        edge_index: Any,
        sizes: Sequence[int],
        node_idx: Tensor | None = None,
        num_nodes: int | None = None,
        return_e_id: bool = True,
        transform: Callable[..., Any] | None = None,
        **kwargs: Any,
    ) -> None:
        for name in ("dataset", "collate_fn"):  # Lightning passes them again
            kwargs.pop(name, None)
        self.edge_index, self.node_idx, self.num_nodes = edge_index, node_idx, num_nodes
        self.sizes, self.return_e_id, self.transform = sizes, return_e_id, transform
        if num_nodes is None and type(edge_index) is Tensor and edge_index.layout == torch.strided:
            is_mask = node_idx is not None and node_idx.dtype == torch.bool
            named = [] if node_idx is None or is_mask else [node_idx]
            highest = (int(values.max()) for values in (edge_index, *named) if values.numel())
            num_nodes = node_idx.numel() if is_mask and node_idx is not None else max(highest, default=-1) + 1
        self._adjacency = by_target(edge_index, num_nodes or 0)
        self._kernels = kernels(self._adjacency.e_id.numel())
        self._epoch = EpochKey()
        if node_idx is None:
            node_idx = torch.arange(self._adjacency.num_nodes)
        elif node_idx.dtype == torch.bool:
            node_idx = node_idx.nonzero().view(-1)
        super().__init__(node_idx.view(-1).tolist(), collate_fn=self.sample, **kwargs)  # type: ignore[arg-type]

    def __iter__(self) -> Any:
        self._epoch.begin()
        return super().__iter__()

    def sample(self, batch: Sequence[int] | Tensor) -> Any:
        """The batch of these seed nodes."""
        seeds = batch if isinstance(batch, Tensor) else torch.tensor(batch)
        key = stream(Purpose.SAMPLING, self._epoch.value(), digest(seeds))
        found = self._kernels.numbering(seeds)
        adjs = [self._hop(found, size, stream(Purpose.SAMPLING, key, hop)) for hop, size in enumerate(self.sizes)]
        out = (seeds.numel(), found.ids, adjs[0] if len(adjs) == 1 else adjs[::-1])
        return out if self.transform is None else self.transform(*out)

    def _hop(self, found: Any, size: int, key: int) -> EdgeIndex | Adj:
        adjacency, nodes = self._adjacency, found.ids
        draw = Draw(size, key, replace=False)
        offsets, places = sample_edges(adjacency.relation, nodes, nodes, None, draw, self._kernels)
        sources = found.add(adjacency.relation.indices[places])
        targets = rows_of(offsets, places.numel())
        order = (targets * len(found) + sources).argsort(stable=True)
        sources, targets = sources[order], targets[order]
        edges = adjacency.e_id[places[order]]
        e_id = edges if self.return_e_id else None
        if adjacency.sparse is None:
            return EdgeIndex(torch.stack([sources, targets]), e_id, (len(found), nodes.numel()))
        values = None if adjacency.values is None else adjacency.values[edges]
        matrix = adjacency.sparse(offsets, sources, values, (nodes.numel(), len(found)))
        return Adj(matrix, e_id, (len(found), nodes.numel()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(sizes={self.sizes})"
