"""One layer's input on several types of nodes and edges, as a user's model with `layer(i, hop, x)` sees it.

In training a hop comes from a sample; in evaluation it holds all edges into some nodes of one type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import edge_ranges, rows_of, slices
from clusterctl.engine.graph.hashing import Purpose, keyed_dropout, stream
from clusterctl.engine.graph.neighbors import renumbered

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from clusterctl.engine.graph.sampling import HeteroSample
    from clusterctl.engine.graph.storage import EdgeType, HeteroGraph


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
