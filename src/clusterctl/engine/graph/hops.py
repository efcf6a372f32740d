"""A `Hop` is the edges of one layer as a user's model sees them: in the format of PyG's layers.

A `TypedHop` is one layer's input on several types of nodes and edges, as a user's model with `layer(i, hop, x)` sees
it. In training a hop comes from a sample; in evaluation it holds all edges into some nodes, of one type if there are
several.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import Neighborhoods, edge_ranges, rows_of, slices
from clusterctl.engine.graph.hashing import Purpose, stream
from clusterctl.engine.graph.masks import keyed_dropout
from clusterctl.engine.graph.neighbors import renumbered
from clusterctl.engine.graph.storage import numbered

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from clusterctl.engine.graph.blocks import Adjacency, Block
    from clusterctl.engine.graph.storage import EdgeType, HeteroGraph


@dataclass(frozen=True)
class Hop:
    """The input of one layer, which computes new rows for the first `targets` rows from the rows at their edges.

    With `x` the input, PyG's bipartite convolutions take `((x, x[:hop.targets]), hop.edge_index)`.
    """

    edge_index: Tensor  # int64 [2, edges]: the row of the source, the row of the target; ascending by target
    targets: int
    graph: Adjacency
    places: Tensor  # int64 [rows]: the node of each row in `graph`, whose order may not be that of the user's data
    neighborhoods: Neighborhoods  # the same edges, by target
    randomness: tuple[int, ...] | None = None  # of the step and layer; None in evaluation

    @cached_property
    def nodes(self) -> Tensor:
        """int64 [rows]: the node of each row, numbered as in the user's data."""
        return numbered(self.graph, self.places)

    @cached_property
    def row_degree(self) -> Tensor:
        """int64 [rows]: the number of neighbours of each row's node in the whole graph."""
        return self._degree_of(self.places)

    @property
    def degree(self) -> Tensor:
        """int64 [targets]: the number of neighbours in the whole graph; the edges may be a sample."""
        return self._degree_of(self.places[: self.targets])

    def _degree_of(self, places: Tensor) -> Tensor:
        indptr = self.graph.indptr
        return indptr.index_select(0, places + 1) - indptr.index_select(0, places)

    def dropout(self, rows: Tensor, p: float, number: int = 0) -> Tensor:
        """Dropout with probability `p` of `rows`, which are the input's or the targets'; a no-op in evaluation.

        The mask depends on the node and the step, not on the rank; torch's own dropout changes with the number of
        ranks. A second dropout in the same layer needs a different `number`.
        """
        if self.randomness is None or not p:
            return rows
        return keyed_dropout(rows, self.nodes[: len(rows)], p, stream(Purpose.DROPOUT, *self.randomness, number))


def sampled_hops(blocks: Sequence[Block], randomness: tuple[int, ...] | None) -> list[Hop]:
    """The hops of a sample in the order of the layers. The outermost block has no edges, only the nodes to read."""
    hops = []
    for number, (before, block) in enumerate(pairwise(blocks)):
        key = None if randomness is None else (*randomness, number)
        hops.append(_hop(block.graph, block.rows, block.offsets, before.nodes, key, block.edge_mask))
    return hops


def whole_hops(graph: Adjacency, own: range, most_edges: int, most_targets: int | None = None) -> Iterator[Hop]:
    """All edges into the nodes `own`, in hops of at most `most_targets`, and `most_edges` unless one node has more."""
    bounds = graph.indptr[own.start : own.stop + 1]
    for start, stop in _pieces(bounds, most_edges, most_targets):
        targets = torch.arange(own.start + start, own.start + stop, device=bounds.device)
        nodes, columns = renumbered(targets, graph.sources(slice(int(bounds[start]), int(bounds[stop]))))
        offsets = (bounds[start : stop + 1] - bounds[start]).to(torch.int32)
        yield _hop(graph, columns, offsets, nodes)


def hop_into(graph: Adjacency, targets: Tensor) -> Hop:
    """All edges into the `targets`, int64, distinct."""
    degrees = graph.indptr[targets + 1] - graph.indptr[targets]
    offsets = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
    shift = (graph.indptr[targets] - offsets[:-1]).repeat_interleave(degrees)
    edges = torch.arange(len(shift), device=shift.device) + shift
    nodes, columns = renumbered(targets, graph.sources(edges))
    return _hop(graph, columns, offsets.to(torch.int32), nodes)


def whole_neighborhoods(
    graph: Adjacency, own: range, most_edges: int, most_targets: int | None = None
) -> Iterator[tuple[slice, Neighborhoods]]:
    """All edges into the nodes `own`, in the pieces of `whole_hops`, and the slice of `own` of each piece.

    Their table has a row for every node: nothing is renumbered. There is at least one piece, possibly empty.
    """
    bounds = graph.indptr[own.start : own.stop + 1]
    for start, stop in list(_pieces(bounds, most_edges, most_targets)) or [(0, 0)]:
        targets = torch.arange(own.start + start, own.start + stop, device=bounds.device)
        columns = graph.sources(slice(int(bounds[start]), int(bounds[stop])))
        offsets = (bounds[start : stop + 1] - bounds[start]).to(torch.int32)
        yield slice(start, stop), Neighborhoods(columns, offsets, targets)


def _pieces(bounds: Tensor, most_edges: int, most_targets: int | None) -> Iterator[tuple[int, int]]:
    for start, stop in edge_ranges(bounds, most_edges):
        for part in slices(stop - start, most_targets or stop - start):
            yield start + part.start, start + part.stop


def _hop(
    graph: Adjacency,
    columns: Tensor,
    offsets: Tensor,
    nodes: Tensor,
    randomness: tuple[int, ...] | None = None,
    edge_mask: Tensor | None = None,
) -> Hop:
    """The hop of these edges (`Block.rows`, `offsets`, `edge_mask`); the targets are the first of `nodes`."""
    count = offsets.numel() - 1
    targets = torch.arange(count, device=columns.device)
    neighborhoods = Neighborhoods(columns, offsets, targets, edge_mask)
    edge_index = torch.stack([columns.to(torch.int64), neighborhoods.targets()])
    return Hop(edge_index, count, graph, nodes, neighborhoods, randomness)


@dataclass(frozen=True)
class TypedHop:
    """The input of one layer, which computes new rows for the first `targets[type]` rows of each type.

    With `x` the rows by type, PyG's bipartite convolutions take, for each of the relations (source, name, target),
    `((x[source], x[target][: hop.targets[target]]), edges)`.
    """

    edge_index_dict: dict[EdgeType, Tensor]  # int64 [2, edges]: the row of the source, the row of the target
    targets: dict[str, int]
    nodes: dict[str, Tensor]  # int64 [rows]: the node of each row
    randomness: tuple[int, ...] | None = None  # of the step and layer; None in evaluation
    wanted: Tensor | None = None  # int64: of the targets' rows, those of the examples, in the last layer; None: all

    @property
    def num_edges(self) -> int:
        """Of all relations."""
        return sum(edges.size(1) for edges in self.edge_index_dict.values())

    def dropout(self, rows: Mapping[str, Tensor], p: float, number: int = 0) -> dict[str, Tensor]:
        """Dropout of rows by type, which are the input's or the targets', as in `Hop.dropout`."""
        if self.randomness is None or not p:
            return dict(rows)
        found = {}
        for kind, own in rows.items():
            key = stream(Purpose.DROPOUT, *self.randomness, number, [*self.nodes].index(kind))
            found[kind] = keyed_dropout(own, self.nodes[kind][: len(own)], p, key)
        return found


@dataclass(frozen=True)
class HeteroSample:
    """The blocks of each hop, the seeds' first, and all nodes of each type.

    The nodes of a type begin with its seeds; every hop appends its new nodes. So the blocks of all hops share one table
    of rows for `nodes`, and the targets of a block are its first rows.
    """

    hops: list[dict[EdgeType, Block]]
    nodes: dict[str, Tensor]  # int64
    targets: list[dict[str, int]]  # of each hop: how many of the nodes were known before it


def sampled_typed_hops(sample: HeteroSample, randomness: tuple[int, ...] | None) -> list[TypedHop]:
    """The hops of a sample in the order of the layers."""
    hops, layers = [], len(sample.hops)
    for number in range(layers):
        at = layers - 1 - number
        known = sample.targets[at + 1] if at + 1 < layers else {kind: len(own) for kind, own in sample.nodes.items()}
        edges = {
            relation: torch.stack([block.columns.to(torch.int64), rows_of(block.offsets, block.columns.numel())])
            for relation, block in sample.hops[at].items()
        }
        nodes = {kind: own[: known[kind]] for kind, own in sample.nodes.items()}
        key = None if randomness is None else (*randomness, number)
        hops.append(TypedHop(edges, sample.targets[at], nodes, key))
    return hops


def whole_typed_hops(
    graph: HeteroGraph, kind: str, own: range, most_edges: int, most_targets: int
) -> Iterator[TypedHop]:
    """All edges into the nodes `own` of one type, in hops of bounded sizes; at least one, possibly empty."""
    into = [relation for relation in graph.indptr if relation[2] == kind]
    device = next(iter(graph.indptr.values())).device
    bounds = torch.zeros(len(own) + 1, dtype=torch.int64, device=device)
    for relation in into:
        bounds += graph.indptr[relation][own.start : own.stop + 1]
    for start, stop in list(edge_ranges(bounds, most_edges)) or [(0, 0)]:
        for part in slices(stop - start, most_targets):
            first, last = own.start + start + part.start, own.start + start + part.stop
            yield _into(graph, kind, torch.arange(first, last, device=device), into)


def _into(graph: HeteroGraph, kind: str, targets: Tensor, into: Sequence[EdgeType]) -> TypedHop:
    """All edges into consecutive targets."""
    nodes = dict.fromkeys(graph.num_nodes, targets[:0]) | {kind: targets}
    edges: dict[EdgeType, Tensor] = {}
    first, last = (int(targets[0]), int(targets[-1]) + 1) if len(targets) else (0, 0)
    for relation in graph.indptr:
        if relation not in into:
            edges[relation] = targets.new_empty(2, 0)
            continue
        source, indptr = relation[0], graph.indptr[relation][first : last + 1]
        neighbors = graph.indices[relation][int(indptr[0]) : int(indptr[-1])]
        nodes[source], columns = renumbered(nodes[source], neighbors)
        edges[relation] = torch.stack([columns.to(torch.int64), rows_of(indptr, columns.numel())])
    return TypedHop(edges, dict.fromkeys(graph.num_nodes, 0) | {kind: len(targets)}, nodes)
