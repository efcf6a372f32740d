"""How often each node's features are read, and therefore which rows a cache should hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import edge_ranges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.engine.graph.blocks import Adjacency
    from clusterctl.engine.graph.storage import EdgeType, HeteroGraph

_EDGES_AT_ONCE = 1 << 22
_HALVINGS = 60


def expected_visits(graph: Adjacency, start: Tensor, fan_out: Sequence[int]) -> Tensor:
    """The expected number of visits to each node, float32 [nodes]; `start` is how often each node is a seed.

    Each hop adds the neighbours of the nodes reached so far, weighted by the probability of being sampled.
    """
    visits = start.to(torch.float32, copy=True)
    for count in fan_out:
        _visit_neighbors(graph, visits, count, visits)
    return visits


def expected_visits_by_type(
    graph: HeteroGraph, start: Mapping[str, Tensor], fan_outs: Mapping[EdgeType, Sequence[int]]
) -> dict[str, Tensor]:
    """Like `expected_visits`, for each node type; `start` may leave out types without seeds."""
    visits = {kind: torch.zeros(count) for kind, count in graph.num_nodes.items()}
    for kind, often in start.items():
        visits[kind] += often
    for hop in range(max(map(len, fan_outs.values()))):
        reached = {kind: often.clone() for kind, often in visits.items()}
        for relation, counts in fan_outs.items():
            source, _, target = relation
            if counts[hop]:
                _visit_neighbors(graph.relation(relation), reached[target], counts[hop], visits[source])
    return visits


def _visit_neighbors(graph: Adjacency, targets: Tensor, count: int, visits: Tensor) -> None:
    """Add `count` neighbours (-1: all) to the sources' `visits` for each visit to `targets`, which may be the same."""
    share = targets * (count / graph.degree.clamp(min=1)).clamp_(max=1) if count >= 0 else targets.clone()
    for first, last in edge_ranges(graph.indptr, _EDGES_AT_ONCE):
        bounds = graph.indptr[first : last + 1]
        edges = graph.indices[int(bounds[0]) : int(bounds[-1])]
        visits.index_add_(0, edges, share[first:last].repeat_interleave(bounds.diff(), output_size=edges.numel()))


def hottest(visits: Tensor, most: int) -> Tensor:
    """The at most `most` nodes that are visited most often, int64, ascending; ties are broken arbitrarily."""
    chosen = visits.topk(most, sorted=False)
    return chosen.indices[chosen.values > 0].sort().values


def rows_within(budget: int, visits: Sequence[Tensor], row_bytes: Sequence[int]) -> list[int]:
    """How many rows of each table to cache, so that `budget` bytes serve the most visits per byte."""

    def above(rate: float) -> list[int]:
        """The rows of each table that are visited more than `rate` times per byte."""
        return [int((often > rate * row).sum()) for often, row in zip(visits, row_bytes, strict=True)]

    def size(counts: Sequence[int]) -> int:
        return sum(count * row for count, row in zip(counts, row_bytes, strict=True))

    if size(above(0.0)) <= budget:
        return above(0.0)
    low, high = 0.0, max(float(often.max()) for often in visits if often.numel()) / min(row_bytes)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if size(above(middle)) > budget else (low, middle)
    counts, candidates = above(high), above(low)
    for number, row in enumerate(row_bytes):  # rows between the two rates are visited equally often
        counts[number] += min(candidates[number] - counts[number], max(0, budget - size(counts)) // row)
    return counts
