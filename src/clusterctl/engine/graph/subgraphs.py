"""Pieces of a graph as PyG's models take them: rows of nodes, and edges between the rows, or dicts of these by type.

In training, rows are copies of nodes, one for each depth at which a node was sampled. So the output for a seed depends
only on its own sampled tree and not on the other seeds of its rank. PyG's own loader gives each node one row, with
neighbours that depend on the rest of the batch; so do samples for models that mix the rows of a batch anyway. A self
loop connects a row with itself, not with a copy: PyG's layers that add self loops remove such edges before. Rows are
ordered by depth, edges by hop, as `trim_to_layer` requires. In a graph with times, every seed has a tree of its own,
because it sees the past of its own time: nothing in a seed's tree is later than the seed.

Cluster-GCN (Chiang et al., KDD 2019) trains on other subgraphs: a graph in parts with few edges between them, a few of
which make a subgraph. Every epoch joins the clusters into other subgraphs, which depend on (seed, epoch) only. A node
is in one of them. The parts are those of METIS (Karypis and Kumar, SIAM J. Sci. Comput. 1998), in pymetis.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import Adjacency, moved, rows_of
from clusterctl.engine.graph.hashing import Purpose, draws, stream
from clusterctl.engine.graph.neighbors import Draw, max_duplicates, renumbered, sample_positions
from clusterctl.engine.graph.pyg.relation import kernels, seen
from clusterctl.engine.graph.sampling import engine_for
from clusterctl.engine.graph.storage import Recipe, numbered
from clusterctl.shared.errors import TaskError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.engine.graph.storage import EdgeType, FeatureGraph, Graph, HeteroGraph


@dataclass(frozen=True)
class Subgraph:
    """Rows, the first `seeds` of which are the nodes whose outputs are wanted, and edges between them."""

    graph: FeatureGraph
    places: Tensor  # int64 [rows]: the node of each row in `graph`, whose order may not be that of the user's data
    edge_index: Tensor  # int64 [2, edges]: the row of the source, the row of the target
    seeds: int
    edges: Tensor | None = None  # int64 [edges]: places in `graph.indices`, if they were asked for
    rows_by_depth: tuple[int, ...] = ()  # the seeds first; empty if the rows are not by depth
    edges_by_depth: tuple[int, ...] = ()  # those into the seeds first
    randomness: tuple[int, ...] | None = None  # of the step; None in evaluation
    wanted: Tensor | None = None  # int64: of the outputs for `seeds`, the ones that are wanted; None: all

    @cached_property
    def nodes(self) -> Tensor:
        """int64 [rows]: the node of each row, numbered as in the user's data."""
        return numbered(self.graph, self.places)

    @property
    def num_rows(self) -> int:
        return len(self.places)

    @property
    def num_edges(self) -> int:
        return self.edge_index.size(1)

    def repeated(self, times: int) -> Subgraph:
        """The same rows with `times` copies of all edges."""
        edges = self.edges if self.edges is None else self.edges.repeat(times)
        return replace(self, edge_index=self.edge_index.repeat(1, times), edges=edges)

    def of_edges(self, name: str) -> Tensor | None:
        """The attribute `name` of the edges, in their order; None if the graph has none."""
        values: Tensor | None = getattr(self.graph, name, None)
        return values if values is None or self.edges is None else values.index_select(0, self.edges.to(values.device))


class SubgraphSampler:
    """Samples `fan_out` neighbours for each (node, depth), the seeds' hop first; -1 takes all.

    Randomness is keyed by (seed, epoch, step, depth, node). `replace` and `labor` are as for `NeighborSampler`. With
    `places`, a sample knows the places of its edges. With `merged`, each node has one row, the first at which it was
    sampled, and gets neighbours only there, as with PyG's loader.
    """

    def __init__(
        self,
        graph: FeatureGraph,
        fan_out: Sequence[int],
        seed: int,
        *,
        replace: bool = False,
        labor: bool = False,
        places: bool = False,
        merged: bool = False,
    ) -> None:
        self._given, self._fan_out, self._seed, self._places = graph, fan_out, seed, places
        self._merged = merged
        self._graph = graph = graph.beside_edges
        engine = engine_for(graph.indices.numel(), graph.indices.device)
        self._renumbered = engine.renumbering(graph.num_nodes)
        if labor:
            self._sample = partial(engine.sample_labor, duplicates=max_duplicates(graph), places=places)
        else:
            self._sample = partial(engine.sample_neighbors, replace=replace, places=places)

    def sample(self, seeds: Tensor, epoch: int, step: int, excluded: Tensor | None = None) -> Subgraph:
        """The sampled trees of `seeds` (int64). `excluded` is as for `NeighborSampler.sample`."""
        device = self._graph.indices.device
        absent = () if excluded is None else (excluded.to(device),)
        frontier, above = seeds.to(device), 0  # the nodes of one depth, and the number of rows before them
        nodes, edge_index, places = [frontier], [], []
        for depth, count in enumerate(self._fan_out):
            key = stream(Purpose.SAMPLING, self._seed, epoch, step, depth)
            offsets, found = self._sample(self._graph, frontier, count, key, *absent)
            if self._places:
                places.append(found)
                found = self._graph.indices.index_select(0, found)
            targets = rows_of(offsets, found.numel(), above)
            is_loop = frontier.repeat_interleave(offsets.diff(), output_size=found.numel()) == found
            known = torch.cat(nodes) if self._merged else frontier[:0]
            above += frontier.numel()
            sources, columns = self._renumbered(known, found)
            frontier, first = sources[known.numel() :], above - known.numel()
            nodes.append(frontier)
            edge_index.append(torch.stack([torch.where(is_loop, targets, columns.to(torch.int64) + first), targets]))
        rows, edges = moved((torch.cat(nodes), torch.cat(edge_index, 1)), self._given.indptr.device)
        return Subgraph(
            self._given,
            rows,
            edges,
            seeds.numel(),
            torch.cat(places) if places else None,
            tuple(part.numel() for part in nodes),
            tuple(part.size(1) for part in edge_index),
            (self._seed, epoch, step),
        )


def neighbourhood(graph: FeatureGraph, seeds: Tensor, hops: int, most: int = -1) -> Subgraph:
    """The nodes from which `seeds` (int64, distinct) can be reached in `hops` edges, and all edges into those in fewer.

    Every node has one row. With `most`, it is as if the graph had only so many edges into each node, always the same.
    """
    nodes, targets = seeds, 0
    for _ in range(hops):
        offsets, edges = sample_positions(graph, nodes, most, 0)
        targets = nodes.numel()
        nodes, columns = renumbered(nodes, graph.sources(edges))
        if nodes.numel() == targets:
            break
    return Subgraph(
        graph, nodes, torch.stack([columns.to(torch.int64), rows_of(offsets, edges.numel())]), seeds.numel(), edges
    )


def whole(graph: FeatureGraph) -> Subgraph:
    """All nodes in their order, and all edges in theirs."""
    nodes = torch.arange(graph.num_nodes, device=graph.indptr.device)
    return Subgraph(graph, nodes, graph.edge_index, len(nodes))


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


@dataclass(frozen=True)
class Trees:
    """The seed of each row, in a graph with times."""

    of_rows: dict[str, Tensor]  # int64 [rows]: the number of the seed, by type of the row
    latest: Tensor  # [seeds]: the time up to which each seed sees
    keys: Tensor  # int64 [seeds]: a key for the draws of each


@dataclass(frozen=True)
class TypedSubgraph:
    """Rows of nodes by type, those of the seeds first, and edges between the rows by type."""

    graph: HeteroGraph
    places: dict[str, Tensor]  # int64 [rows]: the node of each row
    edge_index: dict[EdgeType, Tensor]  # int64 [2, edges]: the row of the source, the row of the target
    seeds: dict[str, int]
    rows_by_depth: dict[str, tuple[int, ...]] = field(default_factory=dict)  # the seeds first; empty: not by depth
    edges_by_depth: dict[EdgeType, tuple[int, ...]] = field(default_factory=dict)
    randomness: tuple[int, ...] | None = None  # of the step; None in evaluation
    trees: Trees | None = None
    edges: dict[EdgeType, Tensor] | None = None  # int64: places in `graph.indices`; None: all, in order, or not wanted

    @cached_property
    def num_rows(self) -> int:
        return sum(map(len, self.places.values()))

    @cached_property
    def num_edges(self) -> int:
        return sum(edges.size(1) for edges in self.edge_index.values())

    def repeated(self, times: int) -> TypedSubgraph:
        """The same rows with `times` copies of all edges."""
        edge_index = {relation: own.repeat(1, times) for relation, own in self.edge_index.items()}
        edges = self.edges and {relation: own.repeat(times) for relation, own in self.edges.items()}
        return replace(self, edge_index=edge_index, edges=edges, rows_by_depth={}, edges_by_depth={})

    def of_edges(self, name: str) -> dict[EdgeType, Tensor]:
        """The attribute `name` of the edges, in their order, of the relations that have it."""
        values: Mapping[EdgeType, Tensor] = getattr(self.graph, name)
        if self.edges is None:
            return dict(values)
        return {relation: own.index_select(0, self.edges[relation]) for relation, own in values.items()}


class TypedSampler:
    """Samples `fan_out` neighbours for each relation, (node, depth), the seeds' hop first; -1 takes all.

    Randomness is keyed by (seed, epoch, step, depth, relation, node). In a graph with times it is keyed by (seed,
    epoch, depth, relation, example, node); with `last`, the latest neighbours are taken instead. In a graph with
    attributes of edges, a sample knows the places of its edges.
    """

    def __init__(
        self, graph: HeteroGraph, fan_out: Sequence[int], seed: int, *, replace: bool = False, last: bool = False
    ) -> None:
        self._graph, self._fan_out, self._seed = graph, fan_out, seed
        self._replace, self._last = replace, last
        self._relations = list(graph.indptr)
        self._places = graph.has_edge_numbers
        arrays = list(graph.indices.values())
        edges, self._device = sum(map(len, arrays)), arrays[0].device
        engine = engine_for(edges, self._device)
        self._sample_neighbors = engine.sample_neighbors
        self._seen: Callable[..., tuple[Tensor, Tensor]] = seen
        self._renumbered: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]]
        if graph.is_temporal and self._places:  # edges instead of sources
            self._numbers = {
                relation: torch.arange(len(own), device=own.device) for relation, own in graph.indices.items()
            }
        if graph.is_temporal:  # ids of trees and nodes
            self._renumbered = dict.fromkeys(graph.num_nodes, renumbered)
            if self._device.type == "cpu":
                by = kernels(edges)
                self._seen = by.seen

                def in_order_of_discovery(nodes: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
                    numbering = by.numbering(nodes)
                    columns = numbering.add(ids)
                    return numbering.ids.clone(), columns

                self._renumbered = dict.fromkeys(graph.num_nodes, in_order_of_discovery)
        else:
            self._renumbered = {kind: engine.renumbering(count) for kind, count in graph.num_nodes.items()}

    def sample(
        self,
        seeds: Mapping[str, Tensor],
        epoch: int,
        step: int,
        excluded: Mapping[EdgeType, Tensor] | None = None,
        *,
        latest: Tensor | None = None,
        examples: Tensor | None = None,
    ) -> TypedSubgraph:
        """The sampled trees of these nodes (int64, by type).

        In a graph with times, `latest` [seeds] is the time up to which each seed sees, and `examples` (int64) are
        numbers that key its draws. Otherwise `excluded` edges of each type are as for `NeighborSampler.sample`.
        """
        no_seeds = torch.empty(0, dtype=torch.int64, device=self._device)
        nodes = {kind: seeds.get(kind, no_seeds) for kind in self._graph.num_nodes}
        if self._graph.is_temporal:
            assert latest is not None
            assert examples is not None
            step = 0  # a row of a table has the same neighbours in whichever step it comes
            numbers = torch.split(torch.arange(len(latest), device=self._device), [len(own) for own in nodes.values()])
            nodes = {
                kind: number * self._graph.num_nodes[kind] + own
                for (kind, own), number in zip(nodes.items(), numbers, strict=True)
            }
            keys = draws(0, examples)
        else:
            keys = None
        frontier = nodes
        rows = {kind: [ids] for kind, ids in frontier.items()}
        begin = dict.fromkeys(frontier, 0)  # of the frontier's rows
        edges: dict[EdgeType, list[Tensor]] = {relation: [] for relation in self._relations}
        taken: dict[EdgeType, list[Tensor]] = {relation: [] for relation in self._relations}  # their places
        for depth, count in enumerate(self._fan_out):
            found = {}
            for number, relation in enumerate(self._relations):
                ids = frontier[relation[2]]
                if not ids.numel():
                    edges[relation].append(ids.new_empty(2, 0))
                    taken[relation].append(ids.new_empty(0))
                    continue
                key = stream(Purpose.SAMPLING, self._seed, epoch, step, depth, number)
                absent = (excluded or {}).get(relation)
                offsets, sources, own_places = self._drawn(relation, ids, count, key, absent, latest, keys)
                found[relation] = offsets, sources
                taken[relation].append(own_places)
            behind = {kind: begin[kind] + len(ids) for kind, ids in frontier.items()}
            following = {kind: ids[:0] for kind, ids in frontier.items()}
            # The relations from one type of sources share the rows of a depth, so they are renumbered together.
            for source in dict.fromkeys(relation[0] for relation in found):
                own = [relation for relation in found if relation[0] == source]
                together = torch.cat([found[relation][1] for relation in own])
                following[source], columns = self._renumbered[source](following[source], together)
                parts = torch.split(columns, [found[relation][1].numel() for relation in own])
                for relation, part in zip(own, parts, strict=True):
                    offsets, ids = found[relation]
                    targets = rows_of(offsets, part.numel(), begin[relation[2]])
                    rows_of_sources = part.to(torch.int64) + behind[source]
                    if source == relation[2]:
                        own_ids = frontier[source].repeat_interleave(offsets.diff(), output_size=ids.numel())
                        rows_of_sources = torch.where(own_ids == ids, targets, rows_of_sources)
                    edges[relation].append(torch.stack([rows_of_sources, targets]))
            frontier, begin = following, behind
            for kind, ids in frontier.items():
                rows[kind].append(ids)
        places, trees = {kind: torch.cat(parts) for kind, parts in rows.items()}, None
        if latest is not None and keys is not None:
            trees = Trees({kind: ids // self._graph.num_nodes[kind] for kind, ids in places.items()}, latest, keys)
            places = {kind: ids % self._graph.num_nodes[kind] for kind, ids in places.items()}
        return TypedSubgraph(
            self._graph,
            places,
            {relation: torch.cat(parts, 1) for relation, parts in edges.items()},
            {kind: len(own) for kind, own in seeds.items()},
            {kind: tuple(map(len, parts)) for kind, parts in rows.items()},
            {relation: tuple(part.size(1) for part in parts) for relation, parts in edges.items()},
            (self._seed, epoch, step),
            trees,
            {relation: torch.cat(parts) for relation, parts in taken.items()} if self._places else None,
        )

    def _drawn(
        self,
        relation: EdgeType,
        ids: Tensor,
        count: int,
        key: int,
        absent: Tensor | None,
        latest: Tensor | None,
        keys: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Edges into each of `ids`: offsets, the ids of the sources, and the places of the edges if they are needed."""
        edges = self._graph.relation(relation)
        if latest is None or keys is None:
            offsets, found = self._sample_neighbors(
                edges, ids, count, key, absent, replace=self._replace, places=self._places
            )
            return offsets, edges.indices.index_select(0, found) if self._places else found, found
        sources, targets = (self._graph.num_nodes[kind] for kind in (relation[0], relation[2]))
        draw, own_times = Draw(count, key, self._replace), self._graph.edge_times.get(relation)
        where = own_times, ids, latest, keys
        if not self._places:
            offsets, found = self._seen(edges, *where, (sources, targets), draw, last=self._last)
            return offsets, found, found
        numbered, total = Adjacency(edges.indptr, self._numbers[relation]), max(1, len(edges.indices))
        offsets, found = self._seen(numbered, *where, (total, targets), draw, last=self._last)
        places = found % total
        return offsets, found // total * sources + edges.indices.index_select(0, places), places


def typed_neighbourhood(graph: HeteroGraph, seeds: Mapping[str, Tensor], hops: int, most: int = -1) -> TypedSubgraph:
    """The nodes from which `seeds` (int64, distinct) can be reached in `hops` edges, and all edges into those in fewer.

    As `neighbourhood`: every node has one row. `most` is the number of edges of each relation into a node.
    """
    empty = next(iter(seeds.values())).new_empty(0)
    nodes = {kind: seeds.get(kind, empty) for kind in graph.num_nodes}
    edge_index = {relation: torch.stack([empty, empty]) for relation in graph.indptr}
    edges = dict.fromkeys(graph.indptr, empty)
    for _ in range(hops):
        known, targets = sum(map(len, nodes.values())), nodes
        found = {
            relation: sample_positions(graph.relation(relation), targets[relation[2]], most, 0)
            for relation in graph.indptr
        }
        nodes = dict(nodes)
        for source in dict.fromkeys(relation[0] for relation in found):
            own = [relation for relation in found if relation[0] == source]
            sources = [graph.indices[relation].index_select(0, found[relation][1]) for relation in own]
            nodes[source], columns = renumbered(nodes[source], torch.cat(sources))
            for relation, part in zip(own, torch.split(columns, list(map(len, sources))), strict=True):
                offsets = found[relation][0]
                edge_index[relation] = torch.stack([part.to(torch.int64), rows_of(offsets, part.numel())])
                edges[relation] = found[relation][1]
        if sum(map(len, nodes.values())) == known:
            break
    of_seeds = {kind: len(own) for kind, own in seeds.items()}
    return TypedSubgraph(graph, nodes, edge_index, of_seeds, edges=edges if graph.has_edge_numbers else None)


def typed_whole(graph: HeteroGraph) -> TypedSubgraph:
    """All nodes in their order, and all edges in theirs."""
    device = next(iter(graph.indptr.values())).device
    nodes = {kind: torch.arange(count, device=device) for kind, count in graph.num_nodes.items()}
    edges = {relation: graph.relation(relation).edge_index for relation in graph.indptr}
    return TypedSubgraph(graph, nodes, edges, dict(graph.num_nodes))
