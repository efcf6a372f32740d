"""Cluster-GCN (Chiang et al., KDD 2019): a graph in parts with few edges between them, a few of which make a subgraph.

Every epoch joins the clusters into other subgraphs, which depend on (seed, epoch) only. A node is in one of them. The
parts are those of METIS (Karypis and Kumar, SIAM J. Sci. Comput. 1998), in pymetis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import rows_of
from clusterctl.engine.graph.hashing import Purpose, stream
from clusterctl.engine.graph.neighbors import sample_positions
from clusterctl.engine.graph.storage import Recipe
from clusterctl.engine.graph.subgraphs import Subgraph
from clusterctl.shared.errors import TaskError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.engine.graph.storage import FeatureGraph, Graph


def parts(indptr: Tensor, indices: Tensor, number: int, *, recursive: bool = False) -> Tensor:
    """The part of each node, int64 in [0, number), for edges by target or by source.

    Directions, loops and repeated edges are ignored. Always the same for the same graph. Parts are about equal, but may
    be empty if there are few nodes. Raises TaskError if pymetis is missing.
    """
    try:
        import pymetis
    except ImportError:
        raise TaskError(
            "partitioning a graph needs pymetis", hint="install it on the nodes: pip install pymetis"
        ) from None
    nodes = indptr.numel() - 1
    if number <= 1 or nodes == 0:
        return torch.zeros(nodes, dtype=torch.int64)
    targets = rows_of(indptr, indices.numel())
    sources = indices.to(torch.int64)
    between = sources != targets
    sources, targets = sources[between], targets[between]
    both = torch.unique(torch.cat([targets * nodes + sources, sources * nodes + targets]))
    offsets = torch.searchsorted(both, torch.arange(nodes + 1) * nodes)
    neighbors = pymetis.CSRAdjacency(adj_starts=offsets.numpy(), adjacent=(both % nodes).numpy())
    _, found = pymetis.part_graph(number, neighbors, recursive=recursive, options=pymetis.Options(seed=0))
    return torch.tensor(found, dtype=torch.int64)


@dataclass(frozen=True)
class Clusters:
    """All nodes by cluster; no cluster is empty."""

    nodes: Tensor  # int64 [nodes], ascending in each cluster
    bounds: Tensor  # int64 [clusters + 1]


def clusters_recipe(of_graph: Recipe[Graph], number: int, graph: Graph) -> Recipe[Clusters]:
    """How to prepare `number` clusters of the prepared `graph`, beside it: its features are not stored again."""

    def build(_: object) -> Clusters:
        return clusters_of(graph, number)

    return Recipe(f"{of_graph.name}-clusters", of_graph.identity | {"clusters": number}, build)


def clusters_of(graph: FeatureGraph, number: int) -> Clusters:
    """At most `number` clusters. Raises TaskError if pymetis is missing."""
    part = parts(graph.indptr, graph.indices, number)
    sizes = part.bincount()
    sizes = sizes[sizes > 0]
    bounds = torch.zeros(sizes.numel() + 1, dtype=torch.int64)
    torch.cumsum(sizes, 0, out=bounds[1:])
    return Clusters(part.argsort(stable=True), bounds)


class ClusterSampler:
    """The subgraphs of `together` clusters each, and all edges within each subgraph. One thread may use it."""

    def __init__(self, graph: FeatureGraph, clusters: Clusters, together: int, seed: int) -> None:
        device = graph.indptr.device
        self._graph, self._together, self._seed = graph, together, seed
        self._nodes, self._bounds = clusters.nodes.to(device), clusters.bounds.tolist()
        self._row = torch.full((graph.num_nodes,), -1, device=device)  # of each node in the current sample
        self._order: tuple[int, list[int]] = (-1, [])  # of the clusters in an epoch

    @property
    def subgraphs(self) -> int:
        """Their number in each epoch."""
        return -(-(len(self._bounds) - 1) // self._together)

    def nodes_of(self, epoch: int, number: int) -> Tensor:
        """The nodes of this subgraph of the epoch, int64."""
        if self._order[0] != epoch:
            generator = torch.Generator().manual_seed(stream(Purpose.CLUSTERS, self._seed, epoch))
            self._order = epoch, torch.randperm(len(self._bounds) - 1, generator=generator).tolist()
        chosen = self._order[1][number * self._together : (number + 1) * self._together]
        return torch.cat([self._nodes[self._bounds[one] : self._bounds[one + 1]] for one in chosen])

    def sample(self, numbers: Sequence[int], epoch: int, step: int) -> Subgraph:
        """These subgraphs of the epoch as one: their nodes, and the edges within each of them."""
        nodes = torch.cat(groups := [self.nodes_of(epoch, number) for number in numbers])
        sizes = torch.tensor([group.numel() for group in groups], device=nodes.device)
        group = torch.arange(len(groups), device=nodes.device).repeat_interleave(sizes)
        self._row[nodes] = torch.arange(nodes.numel(), device=nodes.device)
        offsets, edges = sample_positions(self._graph, nodes, -1, 0)
        sources = self._row[self._graph.indices[edges].to(torch.int64)]
        self._row[nodes] = -1
        targets = rows_of(offsets, edges.numel())
        inside = (sources >= 0) & (group[sources] == group[targets])
        return Subgraph(
            self._graph,
            nodes,
            torch.stack([sources[inside], targets[inside]]),
            nodes.numel(),
            edges[inside],
            randomness=(self._seed, epoch, step),
        )
