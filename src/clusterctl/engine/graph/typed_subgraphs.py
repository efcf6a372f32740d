"""Pieces of a graph with several types of nodes and edges, as PyG's heterogeneous models take them: dicts by type.

As in `subgraphs`, a sampled row is a copy of a node, one for each depth. In a graph with times, every seed has a tree
of its own, because it sees the past of its own time: nothing in a seed's tree is later than the seed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import rows_of
from clusterctl.engine.graph.hashing import Purpose, draws, stream
from clusterctl.engine.graph.neighbors import Draw, renumbered, sample_positions
from clusterctl.engine.graph.pyg.relation import kernels, seen
from clusterctl.engine.graph.sampling import engine_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.engine.graph.storage import EdgeType, HeteroGraph


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

    @cached_property
    def num_rows(self) -> int:
        return sum(map(len, self.places.values()))

    @cached_property
    def num_edges(self) -> int:
        return sum(edges.size(1) for edges in self.edge_index.values())

    def of_one_type(self, kind: str) -> Tensor:
        """int64: the nodes that are seeds, of this type."""
        return self.places[kind][: self.seeds[kind]]

    def repeated(self, times: int) -> TypedSubgraph:
        """The same rows with `times` copies of all edges."""
        edges = {kind: own.repeat(1, times) for kind, own in self.edge_index.items()}
        return replace(self, edge_index=edges, rows_by_depth={}, edges_by_depth={})


class TypedSampler:
    """Samples `fan_out` neighbours for each relation, (node, depth), the seeds' hop first; -1 takes all.

    Randomness is keyed by (seed, epoch, step, depth, relation, node). In a graph with times it is keyed by (seed,
    epoch, depth, relation, example, node); with `last`, the latest neighbours are taken instead.
    """

    def __init__(
        self, graph: HeteroGraph, fan_out: Sequence[int], seed: int, *, replace: bool = False, last: bool = False
    ) -> None:
        self._graph, self._fan_out, self._seed = graph, fan_out, seed
        self._replace, self._last = replace, last
        self._relations = list(graph.indptr)
        arrays = list(graph.indices.values())
        edges, self._device = sum(map(len, arrays)), arrays[0].device
        engine = engine_for(edges, self._device)
        self._sample_neighbors = engine.sample_neighbors
        self._seen: Callable[..., tuple[Tensor, Tensor]] = seen
        self._renumbered: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]]
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
        nodes = {kind: seeds.get(kind, torch.empty(0, dtype=torch.int64, device=self._device)) for kind in self._kinds}
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
        for depth, count in enumerate(self._fan_out):
            found = {}
            for number, relation in enumerate(self._relations):
                ids, adjacency = frontier[relation[2]], self._graph.relation(relation)
                if not ids.numel():
                    edges[relation].append(ids.new_empty(2, 0))
                    continue
                key = stream(Purpose.SAMPLING, self._seed, epoch, step, depth, number)
                if latest is not None and keys is not None:
                    edge_times = self._graph.edge_times.get(relation)
                    sides = self._graph.num_nodes[relation[0]], self._graph.num_nodes[relation[2]]
                    draw = Draw(count, key, self._replace)
                    found[relation] = self._seen(adjacency, edge_times, ids, latest, keys, sides, draw, last=self._last)
                else:
                    absent = (excluded or {}).get(relation)
                    found[relation] = self._sample_neighbors(adjacency, ids, count, key, absent, replace=self._replace)
            behind = {kind: begin[kind] + len(ids) for kind, ids in frontier.items()}
            following = {kind: ids[:0] for kind, ids in frontier.items()}
            # The relations from one type of sources share the rows of a depth, so they are renumbered together.
            for source in dict.fromkeys(relation[0] for relation in found):
                own = [relation for relation in found if relation[0] == source]
                together = torch.cat([found[relation][1] for relation in own])
                following[source], columns = self._renumbered[source](following[source], together)
                parts = torch.split(columns, [found[relation][1].numel() for relation in own])
                for relation, part in zip(own, parts, strict=True):
                    targets = rows_of(found[relation][0], part.numel(), begin[relation[2]])
                    edges[relation].append(torch.stack([part.to(torch.int64) + behind[source], targets]))
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
        )

    @property
    def _kinds(self) -> list[str]:
        return list(self._graph.num_nodes)


def typed_neighbourhood(graph: HeteroGraph, seeds: Mapping[str, Tensor], hops: int, most: int = -1) -> TypedSubgraph:
    """The nodes from which `seeds` (int64, distinct) can be reached in `hops` edges, and all edges into those in fewer.

    As `subgraphs.neighbourhood`: every node has one row. `most` is the number of edges of each relation into a node.
    """
    empty = next(iter(seeds.values())).new_empty(0)
    nodes = {kind: seeds.get(kind, empty) for kind in graph.num_nodes}
    edge_index = {relation: torch.stack([empty, empty]) for relation in graph.indptr}
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
        if sum(map(len, nodes.values())) == known:
            break
    return TypedSubgraph(graph, nodes, edge_index, {kind: len(own) for kind, own in seeds.items()})


def typed_whole(graph: HeteroGraph) -> TypedSubgraph:
    """All nodes in their order, and all edges in theirs."""
    device = next(iter(graph.indptr.values())).device
    nodes = {kind: torch.arange(count, device=device) for kind, count in graph.num_nodes.items()}
    edges = {relation: graph.relation(relation).edge_index for relation in graph.indptr}
    return TypedSubgraph(graph, nodes, edges, dict(graph.num_nodes))
