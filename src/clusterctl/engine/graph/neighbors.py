"""Uniform neighbour sampling with or without replacement, in plain torch on any device.

A draw depends only on its key and the node. `compiled` does the same in loops that numba compiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clusterctl.engine.graph.hashing import below, draws, grid

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.engine.graph.blocks import Adjacency


def sample_neighbors(
    graph: Adjacency,
    nodes: Tensor,
    count: int,
    key: int,
    excluded: Tensor | None = None,
    *,
    replace: bool = False,
    places: bool = False,
) -> tuple[Tensor, Tensor]:
    """At most `count` neighbours of each node (-1: all), as int32 offsets [nodes + 1] and int32 node ids.

    With `replace`, every node with at least one neighbour gets `count` of them, each drawn from all its neighbours.
    `excluded` edges, given as distinct ascending places in `graph.indices` (int64), are ignored in this sample.
    With `places`, the result has the places of the edges in `graph.indices` (int64) instead of node ids.
    """
    offsets, positions = sample_positions(graph, nodes, count, key, excluded, replace=replace)
    return offsets.to(torch.int32), positions if places else graph.indices.index_select(0, positions)


def sample_positions(
    graph: Adjacency, nodes: Tensor, count: int, key: int, excluded: Tensor | None = None, *, replace: bool = False
) -> tuple[Tensor, Tensor]:
    """Like `sample_neighbors`, but all int64 and with the edges as places in `graph.indices`."""
    start, degree = remaining(graph, nodes, excluded)
    offsets, positions = sample_ranges(start, degree, nodes, count, key, replace=replace)
    if excluded is not None:
        positions += torch.searchsorted(gaps(excluded), positions, right=True)
    return offsets, positions


def sample_ranges(
    start: Tensor, degree: Tensor, counters: Tensor, count: int, key: int, *, replace: bool = False
) -> tuple[Tensor, Tensor]:
    """At most `count` places in each range of `degree` places from `start` on, like `sample_positions`.

    A draw depends only on the key and the range's counter (int64).
    """

    def pick(drawn: Tensor) -> Tensor:
        return choose(degree[drawn], count, draws(key, counters[drawn]), replace=replace)

    return take(start, degree, count, pick, replace=replace)


def take(
    start: Tensor, degree: Tensor, count: int, pick: Callable[[Tensor], Tensor], *, replace: bool = False
) -> tuple[Tensor, Tensor]:
    """At most `count` places in each range of `degree` places from `start` on, as offsets and places, int64.

    `pick` returns `count` numbers below the degree of each range, int64 [count, ranges]; it is called only for the
    ranges that are not taken completely.
    """
    taken = sizes(degree, count, replace)
    offsets = torch.zeros(start.numel() + 1, dtype=torch.int64, device=start.device)
    torch.cumsum(taken, 0, out=offsets[1:])
    # First the beginning of every range, as if it were taken completely; then the drawn places where it is not.
    positions = torch.arange(int(offsets[-1]), device=start.device)
    positions += (start - offsets[:-1]).repeat_interleave(taken, output_size=positions.numel())
    drawn = (degree > (0 if replace else count)).nonzero().squeeze(1)
    if count > 0 and drawn.numel():
        places = offsets[drawn] + torch.arange(count, device=start.device)[:, None]
        positions[places] = start[drawn] + pick(drawn)
    return offsets, positions


def sizes(degree: Tensor, count: int, replace: bool) -> Tensor:
    """The number of edges to sample for nodes of these degrees, int64."""
    if count < 0:
        return degree
    return degree.clamp(max=1) * count if replace else degree.clamp(max=count)


def remaining(graph: Adjacency, nodes: Tensor, excluded: Tensor | None) -> tuple[Tensor, Tensor]:
    """Where the edges into each node begin, and their number, in the array without the `excluded` edges."""
    start, end = graph.indptr.index_select(0, nodes), graph.indptr.index_select(0, nodes + 1)
    if excluded is not None:
        start, end = (bound - torch.searchsorted(excluded, bound) for bound in (start, end))
    return start, end - start


def gaps(excluded: Tensor) -> Tensor:
    """Offsets to restore places: place `p` without the excluded edges is `p` plus the number of gaps up to `p`."""
    return excluded - torch.arange(excluded.numel(), device=excluded.device)


def choose(degree: Tensor, count: int, keys: Tensor, *, replace: bool = False) -> Tensor:
    """`count` distinct numbers below each `degree`, which must exceed it: int64 [count, nodes].

    With `replace`, the numbers are independent and may repeat.

    Otherwise every set is equally likely. This is Robert Floyd's algorithm (Bentley and Floyd, "A sample of
    brilliance", CACM 1987) for all nodes at once: pick j is uniform up to `degree - count + j`, and becomes that bound
    if it repeats an earlier pick.
    """
    counters = torch.arange(count, device=degree.device)
    highest = degree - 1 if replace else degree - count + counters[:, None]
    picks = below(grid(counters, keys), highest + 1)
    for j in range(1, 1 if replace else count):
        taken = (picks[:j] == picks[j]).any(0)
        picks[j] = torch.where(taken, highest[j], picks[j])
    return picks


def renumbered(nodes: Tensor, neighbors: Tensor) -> tuple[Tensor, Tensor]:
    """The source nodes of a block, `nodes` first and then the new ones, and the neighbours' rows among them (int32).

    A node that repeats in `nodes` has the row of its first occurrence, on every device.
    """
    unique, inverse = torch.unique(torch.cat([nodes, neighbors.to(torch.int64)]), return_inverse=True)
    targets = nodes.numel()
    absent = inverse.numel()
    row = torch.full_like(unique, absent)
    row.scatter_reduce_(0, inverse[:targets], torch.arange(targets, device=nodes.device), "amin")
    new = unique[row == absent]
    row[row == absent] = torch.arange(targets, targets + new.numel(), device=nodes.device)
    return torch.cat([nodes, new]), row[inverse[targets:]].to(torch.int32)
