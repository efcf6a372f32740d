"""PyG's older loaders, which take edges or a sparse `adj_t`: NeighborSampler, and ShaDow's small subgraphs.

In the bipartite graphs of NeighborSampler, every hop samples all nodes found so far again. With ShaDow (Zeng et al.,
"Decoupling the depth and scope of graph neural networks", NeurIPS 2021) each root has its own subgraph: the nodes that
`depth` hops of sampled neighbours reach, and all edges among them.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch_geometric.data import Batch
from torch_geometric.loader.neighbor_sampler import Adj, EdgeIndex

from clusterctl.engine.graph.blocks import rows_of
from clusterctl.engine.graph.hashing import EpochKey, Purpose, digest, draws, stream
from clusterctl.engine.graph.neighbors import Draw, choose, take
from clusterctl.engine.graph.pyg.adjacency import by_target
from clusterctl.engine.graph.pyg.inputs import check_numbers
from clusterctl.engine.graph.pyg.relation import kernels, sample_edges

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch_geometric.data import Data

    from clusterctl.engine.graph.pyg.relation import Relation


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
        node_idx = _roots(node_idx, self._adjacency.num_nodes)
        super().__init__(node_idx.tolist(), collate_fn=self.sample, **kwargs)  # type: ignore[arg-type]

    def __iter__(self) -> Any:
        self._epoch.begin()
        return super().__iter__()

    def sample(self, batch: Sequence[int] | Tensor) -> Any:
        """The batch of these seed nodes."""
        seeds = batch if isinstance(batch, Tensor) else torch.tensor(batch)
        key = stream(Purpose.SAMPLING, self._epoch.value(), digest(seeds))
        found, adjacency = self._kernels.numbering(seeds), self._adjacency
        adjs: list[EdgeIndex | Adj] = []
        for hop, size in enumerate(self.sizes):
            nodes = found.ids
            draw = Draw(size, stream(Purpose.SAMPLING, key, hop), replace=False)
            offsets, places = sample_edges(adjacency.relation, nodes, nodes, None, draw, self._kernels)
            sources = found.add(adjacency.relation.indices[places])
            targets = rows_of(offsets, places.numel())
            order = (targets * len(found) + sources).argsort(stable=True)
            sources, targets = sources[order], targets[order]
            edges = adjacency.e_id[places[order]]
            e_id = edges if self.return_e_id else None
            if adjacency.sparse is None:
                adjs.append(EdgeIndex(torch.stack([sources, targets]), e_id, (len(found), nodes.numel())))
            else:
                values = None if adjacency.values is None else adjacency.values[edges]
                matrix = adjacency.sparse(offsets, sources, values, (nodes.numel(), len(found)))
                adjs.append(Adj(matrix, e_id, (len(found), nodes.numel())))
        out = (seeds.numel(), found.ids, adjs[0] if len(adjs) == 1 else adjs[::-1])
        return out if self.transform is None else self.transform(*out)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(sizes={self.sizes})"


class ShaDowKHopSampler(DataLoader):  # type: ignore[type-arg]
    """Batches of the subgraphs around root nodes, like torch_geometric.loader.ShaDowKHopSampler.

    A root's subgraph depends on the epoch and the root, not on its batch.
    """

    def __init__(
        self,
        data: Data,
        depth: int,
        num_neighbors: int,
        node_idx: Tensor | None = None,
        replace: bool = False,
        **kwargs: Any,
    ) -> None:
        self.data = copy(data)
        self.depth, self.num_neighbors, self.replace = depth, num_neighbors, replace
        self._adjacency = by_target(
            data.adj_t if data.edge_index is None else data.edge_index, int(data.num_nodes or 0)
        )
        self._epoch = EpochKey()
        self.node_idx = node_idx = _roots(node_idx, self._adjacency.num_nodes)
        super().__init__(node_idx.tolist(), collate_fn=self._batch, **kwargs)  # type: ignore[arg-type]  # a list will do

    def __iter__(self) -> Any:
        self._epoch.begin()
        return super().__iter__()

    def _batch(self, roots: list[int]) -> Batch:
        adjacency = self._adjacency
        key = stream(Purpose.SAMPLING, self._epoch.value())
        found = subgraphs(
            adjacency.relation, torch.tensor(roots), self.depth, self.num_neighbors, key, replace=self.replace
        )
        batch = Batch(batch=found.trees, ptr=found.ptr)
        batch.root_n_id = found.roots
        e_id = adjacency.e_id[found.places]
        if adjacency.sparse is None:
            order = (found.sources * found.nodes.numel() + found.targets).argsort(stable=True)
            batch.edge_index, e_id = torch.stack([found.sources, found.targets])[:, order], e_id[order]
        else:
            values = None if adjacency.values is None else adjacency.values[e_id]
            offsets = torch.searchsorted(found.targets, torch.arange(found.nodes.numel() + 1))
            batch.adj_t = adjacency.sparse(offsets, found.sources, values, (found.nodes.numel(),) * 2)
        for name, values in self.data:
            if name in ("edge_index", "adj_t", "num_nodes", "batch", "ptr"):
                continue
            part = values
            if isinstance(values, Tensor) and values.dim():
                if values.size(0) == self.data.num_nodes:
                    part = values[found.nodes[found.roots] if name == "y" else found.nodes]
                elif values.size(0) == self.data.num_edges:
                    part = values[e_id]
            batch[name] = part
        return batch


def _roots(node_idx: Tensor | None, nodes: int) -> Tensor:
    """The numbers of the nodes to sample around, of all without `node_idx`. Raises ValueError for other nodes."""
    if node_idx is None:
        return torch.arange(nodes)
    if node_idx.dtype == torch.bool and node_idx.numel() != nodes:
        raise ValueError(f"node_idx is a mask of shape {[*node_idx.shape]}, and there are {nodes} nodes")
    found = node_idx.nonzero().view(-1) if node_idx.dtype == torch.bool else node_idx.view(-1)
    check_numbers(found, nodes, "node_idx")
    return found


@dataclass(frozen=True)
class Subgraphs:
    """Nodes ascend within each tree, and edges are by target; all int64."""

    nodes: Tensor
    trees: Tensor  # the number of the root, per node
    ptr: Tensor  # [roots + 1]: where the nodes of each root begin
    roots: Tensor  # the row of each root
    sources: Tensor  # rows, per edge
    targets: Tensor
    places: Tensor  # in `relation.indices`


def subgraphs(
    relation: Relation, roots: Tensor, depth: int, count: int, key: int, *, replace: bool = False
) -> Subgraphs:
    """One subgraph per root. A hop samples `count` neighbours of each node reached, once for each edge that reached it.

    As in torch-sparse, nodes with at most `count` neighbours have all of them sampled, with replacement too.
    """
    nodes = relation.indptr.numel() - 1
    reached, trees = roots, torch.arange(roots.numel())
    ids = [trees * nodes + roots]
    for hop in range(depth):
        begins = torch.searchsorted(trees, torch.arange(roots.numel()))  # of each tree in `reached`
        counters = draws(0, roots)[trees] + torch.arange(trees.numel()) - begins[trees]
        offsets, places = _neighbors(relation, reached, count, stream(Purpose.SAMPLING, key, hop), counters, replace)
        trees = trees.repeat_interleave(offsets.diff(), output_size=places.numel())
        reached = relation.indices[places]
        ids.append(trees * nodes + reached)
    kept = torch.unique(torch.cat(ids))
    trees, own = kept // nodes, kept % nodes
    offsets, places = _neighbors(relation, own, -1)
    targets = rows_of(offsets, places.numel())
    wanted = trees[targets] * nodes + relation.indices[places]
    sources = torch.searchsorted(kept, wanted).clamp_(max=kept.numel() - 1)
    inside = (kept[sources] == wanted).nonzero().squeeze(1)
    return Subgraphs(
        nodes=own,
        trees=trees,
        ptr=torch.searchsorted(trees, torch.arange(roots.numel() + 1)),
        roots=torch.searchsorted(kept, ids[0]),
        sources=sources[inside],
        targets=targets[inside],
        places=places[inside],
    )


def _neighbors(
    relation: Relation, nodes: Tensor, count: int, key: int = 0, counters: Tensor | None = None, replace: bool = False
) -> tuple[Tensor, Tensor]:
    start = relation.indptr[nodes]
    degree = relation.indptr[nodes + 1] - start

    def pick(drawn: Tensor) -> Tensor:
        assert counters is not None
        return choose(degree[drawn], count, draws(key, counters[drawn]), replace=replace)

    return take(start, degree, count, pick)
