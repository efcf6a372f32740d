"""How work on a whole graph is divided: a slice of the nodes for each rank, in pieces that bound what it holds."""

from __future__ import annotations

from torch import distributed as dist


def own_slice(nodes: int) -> range:
    """This rank's part of `nodes` nodes: equal slices in rank order, the last ones shorter."""
    size = -(-nodes // dist.get_world_size())
    return range(nodes)[dist.get_rank() * size : (dist.get_rank() + 1) * size]


def slices(count: int, at_once: int) -> list[slice]:
    """Consecutive slices of `at_once` nodes; at least one, possibly empty."""
    return [slice(start, min(count, start + at_once)) for start in range(0, max(1, count), at_once)]
