"""Pieces of a graph as PyG's models take them: rows of nodes, and edges between the rows.

In training, rows are copies of nodes, one for each depth at which a node was sampled. So the output for a seed depends
only on its own sampled tree and not on the other seeds of its rank. PyG's own loader gives each node one row, with
neighbours that depend on the rest of the batch; so do samples for models that mix the rows of a batch anyway. Rows are
ordered by depth, edges by hop, as `trim_to_layer` requires.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import moved, rows_of
from clusterctl.engine.graph.hashing import Purpose, stream
from clusterctl.engine.graph.labor import max_duplicates
from clusterctl.engine.graph.neighbors import renumbered, sample_positions
from clusterctl.engine.graph.sampling import engine_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.engine.graph.storage import FeatureGraph


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
        numbers: Tensor | None = getattr(self.graph, "numbers", None)
        return self.places if numbers is None else numbers.index_select(0, self.places).to(torch.int64)

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
            known = torch.cat(nodes) if self._merged else frontier[:0]
            above += frontier.numel()
            sources, columns = self._renumbered(known, found)
            frontier, first = sources[known.numel() :], above - known.numel()
            nodes.append(frontier)
            edge_index.append(torch.stack([columns.to(torch.int64) + first, targets]))
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
