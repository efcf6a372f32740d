"""Neighbourhood sampling by PyG's rules: each hop samples only the nodes that the previous hop discovered.

A homogeneous graph is one with a single node type and a single edge type. In disjoint samples every seed has its own
tree: a node that two seeds reach occurs twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import rows_of
from clusterctl.engine.graph.hashing import Purpose, stream
from clusterctl.engine.graph.neighbors import Draw, take
from clusterctl.engine.graph.pyg.relation import sample_edges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.engine.graph.pyg.relation import Kernels, Numbering, Relation
    from clusterctl.engine.graph.storage import EdgeType


@dataclass(frozen=True)
class TypedGraph:
    """A graph in PyG's terms."""

    num_nodes: Mapping[str, int]
    relations: Mapping[EdgeType, Relation]
    by: Kernels


@dataclass(frozen=True)
class Trees:
    """Per-seed data for the trees of a disjoint sample; seeds are numbered across all types."""

    keys: Tensor  # int64: the key of its draws, combined with the node
    latest: Tensor | None  # the time up to which it may see


@dataclass(frozen=True)
class Edges:
    """Sampled edges of one type: rows of sources and targets, and places in `indices`; int64."""

    sources: Tensor
    targets: Tensor
    places: Tensor


@dataclass
class Neighborhood:
    """The sample, by type: first the seeds, then the new nodes of each hop."""

    nodes: dict[str, Tensor]  # int64
    trees: dict[str, Tensor] | None  # int64: the seed whose tree a node belongs to, in a disjoint sample
    edges: dict[EdgeType, Edges]
    num_nodes: dict[str, list[int]] | None  # the number of seeds, then of new nodes per hop
    num_edges: dict[EdgeType, list[int]] | None


@dataclass
class _Hops:
    """The sample under construction. In a disjoint sample an id is `tree * number of nodes + node`."""

    graph: TypedGraph
    trees: Trees | None
    found: dict[str, Numbering]
    edges: dict[EdgeType, list[Edges]]
    ends: dict[str, list[int]] = field(default_factory=dict)  # the number of nodes before each hop

    def nodes_and_trees(self, node_type: str, ids: Tensor) -> tuple[Tensor, Tensor | None]:
        if self.trees is None:
            return ids, None
        return ids % self.graph.num_nodes[node_type], ids // self.graph.num_nodes[node_type]


def walk(
    graph: TypedGraph,
    seeds: Mapping[str, Tensor],
    counts: Mapping[EdgeType, Sequence[int]],
    key: int,
    *,
    replace: bool = False,
    trees: Trees | None = None,
) -> Neighborhood:
    """Sample `counts[edge type][hop]` edges per node, starting from the seeds; disjoint if `trees` is given."""
    hops = _start(graph, seeds, trees)
    for hop in range(max(map(len, counts.values()), default=0)):
        for node_type, found in hops.found.items():
            hops.ends[node_type].append(len(found))
        for number, edge_type in enumerate(graph.relations):
            draw = Draw(counts[edge_type][hop], stream(Purpose.SAMPLING, key, hop, number), replace)
            hops.edges[edge_type].append(_sample_hop(hops, edge_type, draw))
    parted = {node_type: hops.nodes_and_trees(node_type, found.ids) for node_type, found in hops.found.items()}
    owners = {node_type: own for node_type, (_, own) in parted.items() if own is not None}
    for node_type, found in hops.found.items():
        hops.ends[node_type].append(len(found))
    return Neighborhood(
        nodes={node_type: nodes for node_type, (nodes, _) in parted.items()},
        trees=None if trees is None else owners,
        edges={edge_type: _joined(parts) for edge_type, parts in hops.edges.items()},
        num_nodes={
            node_type: [after - before for before, after in pairwise(ends)] for node_type, ends in hops.ends.items()
        },
        num_edges={edge_type: [part.places.numel() for part in parts] for edge_type, parts in hops.edges.items()},
    )


def _start(graph: TypedGraph, seeds: Mapping[str, Tensor], trees: Trees | None) -> _Hops:
    ids = {node_type: torch.empty(0, dtype=torch.int64) for node_type in graph.num_nodes}
    before = 0
    for node_type, nodes in seeds.items():
        ids[node_type] = nodes.to(torch.int64)
        if trees is not None:
            own = torch.arange(before, before + nodes.numel())
            ids[node_type] = own * graph.num_nodes[node_type] + ids[node_type]
        before += nodes.numel()
    return _Hops(
        graph,
        trees,
        found={node_type: graph.by.numbering(own) for node_type, own in ids.items()},
        edges={edge_type: [] for edge_type in graph.relations},
        ends={node_type: [0] for node_type in graph.num_nodes},
    )


def _sample_hop(hops: _Hops, edge_type: EdgeType, draw: Draw) -> Edges:
    source, _, target = edge_type
    relation, trees = hops.graph.relations[edge_type], hops.trees
    begin, end = hops.ends[target][-2:]
    nodes, own_trees = hops.nodes_and_trees(target, hops.found[target].ids[begin:end])
    counters, latest = nodes, None
    if trees is not None and own_trees is not None:
        counters = trees.keys[own_trees] + nodes
        latest = None if trees.latest is None else trees.latest[own_trees]
    offsets, places = sample_edges(relation, nodes, counters, latest, draw, hops.graph.by)
    sampled = offsets.diff()
    ids = relation.indices[places].to(torch.int64)
    if own_trees is not None:
        ids += (own_trees * hops.graph.num_nodes[source]).repeat_interleave(sampled, output_size=places.numel())
    targets = rows_of(offsets, places.numel(), begin)
    return Edges(hops.found[source].add(ids), targets, places)


def _joined(parts: list[Edges]) -> Edges:
    empty = torch.empty(0, dtype=torch.int64)
    return Edges(
        torch.cat([empty, *(part.sources for part in parts)]),
        torch.cat([empty, *(part.targets for part in parts)]),
        torch.cat([empty, *(part.places for part in parts)]),
    )


def induced(graph: TypedGraph, sample: Neighborhood) -> Neighborhood:
    """All edges among the nodes of a non-disjoint sample, by target, no longer separated into hops."""
    found = {node_type: graph.by.numbering(nodes) for node_type, nodes in sample.nodes.items()}
    edges = {}
    for edge_type, relation in graph.relations.items():
        source, _, target = edge_type
        nodes = sample.nodes[target]
        start = relation.indptr[nodes].to(torch.int64)
        degree = relation.indptr[nodes + 1] - start
        offsets, places = take(start, degree, -1, lambda drawn: drawn)
        rows = found[source].find(relation.indices[places].to(torch.int64))
        inside = (rows >= 0).nonzero().squeeze(1)
        targets = rows_of(offsets, places.numel())
        edges[edge_type] = Edges(rows[inside], targets[inside], places[inside])
    return Neighborhood(sample.nodes, sample.trees, edges, None, None)
