"""Edges as examples: their ends, their duplicates, and pairs of nodes without an edge.

An edge is a place in `graph.indices` (int64). The sources of each target ascend, so edges are found by bisection.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import Adjacency
from clusterctl.engine.graph.hashing import Purpose, below, draws, stream
from clusterctl.engine.graph.storage import EdgeType, FeatureGraph, HeteroGraph, compressed
from clusterctl.shared.errors import TaskError
from clusterctl.shared.spec.forward import OF_EDGES

_MOST_DRAWS = 1000  # per negative; if 1 % of the pairs have no edge, 1 in 20,000 examples finds none


@dataclass(frozen=True)
class LinkGraph(FeatureGraph):
    """A graph of the edges that carry messages in training; without `train`, they are the examples, too.

    The splits are pairs, sources in the first row, int32 [2, pairs]. `*_negatives` are pairs without an edge: for `val`
    and `test` always the same ones, for `train` in addition to those drawn in each epoch. With `*_each`, so many of
    them belong to each pair, in the order of the pairs. Attributes of edges are as in `Graph`.
    """

    val: Tensor
    val_negatives: Tensor
    test: Tensor
    test_negatives: Tensor
    train: Tensor | None = None
    train_negatives: Tensor | None = None
    val_each: int = 0
    test_each: int = 0
    edge_weight: Tensor | None = None
    edge_attr: Tensor | None = None
    val_indptr: Tensor | None = None  # the edges that carry messages when `val` is evaluated, if they are others
    val_indices: Tensor | None = None
    val_edge_weight: Tensor | None = None
    val_edge_attr: Tensor | None = None
    test_indptr: Tensor | None = None
    test_indices: Tensor | None = None
    test_edge_weight: Tensor | None = None
    test_edge_attr: Tensor | None = None

    @property
    def predicted(self) -> Adjacency:
        """The edges that carry messages in training."""
        return self

    @property
    def sides(self) -> tuple[int, int]:
        """The numbers of nodes that may be sources, and targets."""
        return self.num_nodes, self.num_nodes

    @property
    def is_one_type(self) -> bool:
        """Whether sources and targets are the same nodes."""
        return True


@dataclass(frozen=True)
class TypedLinkGraph(HeteroGraph):
    """A graph of several types whose edges of one type are to be predicted: the edges that carry messages in training.

    The splits are as in `LinkGraph`: nodes of the type's source in the first row, of its target in the second.
    """

    edge_type: EdgeType
    reverse: list[EdgeType]  # the relations that have the same edges the other way round
    train: Tensor
    train_negatives: Tensor
    val: Tensor
    val_negatives: Tensor
    test: Tensor
    test_negatives: Tensor
    val_each: int = 0
    test_each: int = 0
    val_indptr: dict[EdgeType, Tensor] = field(default_factory=dict)  # as in `LinkGraph`; empty: as in training
    val_indices: dict[EdgeType, Tensor] = field(default_factory=dict)
    test_indptr: dict[EdgeType, Tensor] = field(default_factory=dict)
    test_indices: dict[EdgeType, Tensor] = field(default_factory=dict)
    val_edge_weight: dict[EdgeType, Tensor] = field(default_factory=dict)
    val_edge_attr: dict[EdgeType, Tensor] = field(default_factory=dict)
    test_edge_weight: dict[EdgeType, Tensor] = field(default_factory=dict)
    test_edge_attr: dict[EdgeType, Tensor] = field(default_factory=dict)

    @property
    def predicted(self) -> Adjacency:
        """The edges of the predicted type that carry messages in training."""
        return self.relation(self.edge_type)

    @property
    def sides(self) -> tuple[int, int]:
        """The numbers of nodes that may be sources, and targets."""
        source, _, target = self.edge_type
        return self.num_nodes[source], self.num_nodes[target]

    @property
    def is_one_type(self) -> bool:
        """As in `LinkGraph`."""
        return self.edge_type[0] == self.edge_type[2]

    def hidden(self, sources: Tensor, targets: Tensor) -> dict[EdgeType, Tensor]:
        """The edges between the ends of these pairs, of the predicted type and of the same edges the other way round.

        They are places in `indices` of each type, ascending.
        """
        search = both_ways if self.is_one_type else between
        found = {self.edge_type: search(self.predicted, sources, targets)}
        return found | {one: between(self.relation(one), targets, sources) for one in self.reverse}


G = TypeVar("G", LinkGraph, TypedLinkGraph)


def other_messages(graph: G) -> dict[str, G]:
    """The graphs whose edges carry messages when a split is evaluated, for splits with others than training.

    They have those attributes of edges that `graph` has.
    """

    def has(name: str) -> bool:
        value = getattr(graph, name)  # of one type a tensor or None, of several a dict
        return isinstance(value, Tensor) or bool(value)

    found = {}
    for split in ("val", "test"):
        if has(f"{split}_indptr"):
            names = ("indptr", "indices", *filter(has, OF_EDGES))
            found[split] = replace(graph, **{name: getattr(graph, f"{split}_{name}") for name in names})
    return found


def ends(graph: Adjacency, edges: Tensor) -> tuple[Tensor, Tensor]:
    """The sources and targets of these edges, int64."""
    return graph.indices[edges].to(torch.int64), torch.searchsorted(graph.indptr, edges, right=True) - 1


def how_often(graph: Adjacency) -> Tensor:
    """The expected number of times each node is an end of an example or of its negative: float32 [nodes]."""
    nodes, edges = graph.degree.numel(), graph.indices.numel()
    return graph.degree + graph.indices.bincount(minlength=nodes) + torch.full((nodes,), 2 * edges / max(1, nodes))


def first_at_least(graph: Adjacency, sources: Tensor, targets: Tensor) -> Tensor:
    """For each pair, the first edge into the target from `source` or a larger id, or the end of the target's edges."""
    low, high = graph.indptr[targets], graph.indptr[targets + 1]
    longest = int((high - low).max()) if targets.numel() else 0
    for _ in range(longest.bit_length()):
        middle = (low + high) >> 1
        is_open = middle < high
        less = is_open & (graph.indices[middle * is_open] < sources)
        low, high = torch.where(less, middle + 1, low), torch.where(less, high, middle)
    return low


def has_edge(graph: Adjacency, sources: Tensor, targets: Tensor) -> Tensor:
    """Whether there is an edge between each pair, bool."""
    if graph.indices.numel() == 0:
        return torch.zeros_like(targets, dtype=torch.bool)
    place = first_at_least(graph, sources, targets)
    inside = place < graph.indptr[targets + 1]
    return inside & (graph.indices[place * inside] == sources)


def between(graph: Adjacency, sources: Tensor, targets: Tensor) -> Tensor:
    """All edges from each source to its target, each once, ascending; some pairs may have none, others several."""
    both = first_at_least(graph, torch.cat([sources, sources + 1]), torch.cat([targets, targets]))
    first, behind = both.chunk(2)
    counts = behind - first
    shift = first - (counts.cumsum(0) - counts)
    places = torch.arange(int(counts.sum()), device=sources.device)
    found: Tensor = torch.unique(places + shift.repeat_interleave(counts, output_size=places.numel()))
    return found


def with_duplicates(graph: Adjacency, edges: Tensor) -> Tensor:
    """These edges and their duplicates, each once, ascending."""
    return between(graph, *ends(graph, edges))


def both_ways(graph: Adjacency, sources: Tensor, targets: Tensor) -> Tensor:
    """All edges between the ends of each pair, in both directions, between nodes of one type."""
    return between(graph, torch.cat([sources, targets]), torch.cat([targets, sources]))


def negatives(
    graph: Adjacency,
    num_sources: int,
    examples: Tensor,
    seed: int,
    epoch: int,
    each: int = 1,
    *,
    distinct: bool = False,
) -> tuple[Tensor, Tensor]:
    """`each` pairs without an edge for every example (int64, its place in the training split): sources and targets.

    Uniform among all such pairs, with both ends random; keyed by (seed, epoch, example, number, draw). `distinct`
    leaves out pairs of a node with itself. Raises TaskError if pairs without an edge are too rare to be found.
    """
    num_targets = graph.indptr.numel() - 1
    examples = (examples[:, None] * each + torch.arange(each, device=examples.device)).flatten()
    keys = draws(stream(Purpose.NEGATIVES, seed, epoch), examples)
    sources, targets = torch.empty_like(examples), torch.empty_like(examples)
    waiting = torch.arange(examples.numel(), device=examples.device)
    for draw in range(_MOST_DRAWS):
        own = keys[waiting] + 2 * draw
        sources[waiting] = below(draws(0, own), num_sources)
        targets[waiting] = below(draws(0, own + 1), num_targets)
        drawn = sources[waiting], targets[waiting]
        is_wrong = has_edge(graph, *drawn)
        waiting = waiting[is_wrong | (drawn[0] == drawn[1]) if distinct else is_wrong]
        if waiting.numel() == 0:
            return sources, targets
    raise TaskError(f"no pair without an edge after {_MOST_DRAWS} draws", "does the data hold nearly every pair?")


def without_edge(graph: LinkGraph | TypedLinkGraph) -> Adjacency:
    """The pairs that are never drawn as negatives: all examples and all edges that carry messages in training."""
    messages = Adjacency(graph.predicted.indptr, graph.predicted.indices)
    if graph.train is None or bool(has_edge(messages, *graph.train.long()).all()):
        return messages
    edges = torch.cat([messages.edge_index, graph.train.long()], 1)
    sources, targets = graph.sides
    indptr, indices = compressed(edges.cpu(), targets, sources)
    return Adjacency(indptr.to(messages.indptr.device), indices.to(messages.indices.device))
