"""LABOR-0: targets with common neighbours sample the same ones, so a batch reads fewer distinct rows.

Balin and Catalyurek, "Layer-Neighbor Sampling: Defusing Neighborhood Explosion in GNNs" (NeurIPS 2023), as a bottom-k
draw: every source has one random number per hop, the same for all targets, and a target takes the neighbours with the
smallest numbers. So the fan-out is exact, each neighbour of a target is equally likely, and the sample of a target
depends only on the key and its own list.

A hub examines only a window of its list. Windows begin at the same fraction of every list. Because all lists have their
sources in the same order (`storage.compressed` with `shuffled`), the windows of different targets cover the same part
of the nodes. The position of a window is uniform for any order of the list; the random order keeps the neighbours in
one window as diverse as all neighbours.

Plain torch on any device; `compiled` does the same in loops that numba compiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clusterctl.engine.graph.hashing import Purpose, draws, shift_right, stream
from clusterctl.engine.graph.neighbors import remaining

if TYPE_CHECKING:
    from clusterctl.engine.graph.blocks import Adjacency

WINDOW = 4  # times the fan-out; 8 reads 3 % fewer of Reddit's rows, but drawing takes a third longer
_EDGES_AT_ONCE = 1 << 24
_CANDIDATES_AT_ONCE = 1 << 22
_LAST = torch.iinfo(torch.int64).max


def sample_labor(
    graph: Adjacency, nodes: Tensor, count: int, key: int, duplicates: int, *, places: bool = False
) -> tuple[Tensor, Tensor]:
    """At most `count` neighbours of each node (-1: all), as int32 offsets [nodes + 1] and int32 node ids.

    `duplicates` is `max_duplicates` of the graph; `places` is as for `neighbors.sample_neighbors`.
    """
    start, degree = remaining(graph, nodes, None)
    taken = degree if count < 0 else degree.clamp(max=count)
    offsets = torch.zeros(nodes.numel() + 1, dtype=torch.int64, device=nodes.device)
    torch.cumsum(taken, 0, out=offsets[1:])
    positions = torch.arange(int(offsets[-1]), device=nodes.device)
    positions += (start - offsets[:-1]).repeat_interleave(taken, output_size=positions.numel())
    drawn = (degree > count).nonzero().squeeze(1)
    if count > 0 and drawn.numel():
        chosen = offsets[drawn] + torch.arange(count, device=nodes.device)[:, None]
        positions[chosen] = start[drawn] + choose_labor(graph, start[drawn], degree[drawn], count, key, duplicates)
    return offsets.to(torch.int32), positions if places else graph.indices.index_select(0, positions)


def choose_labor(graph: Adjacency, start: Tensor, degree: Tensor, count: int, key: int, duplicates: int) -> Tensor:
    """`count` distinct numbers below each `degree`, which must exceed it: int64 [count, nodes].

    They are places in the list of edges that begins at `start`, in ascending order of their random numbers. Results for
    degrees that do not exceed the count are meaningless.
    """
    width = max(1, _CANDIDATES_AT_ONCE // (count * WINDOW))
    parts = [
        _chosen(graph.indices, *part, count, key, duplicates)
        for part in zip(torch.split(start, width), torch.split(degree, width), strict=True)
    ]
    return torch.cat(parts).T


def turn_of(key: int) -> int:
    """Where windows begin, as a fraction of the list in units of 2**-32."""
    return (stream(Purpose.WINDOW, key) >> 32) & 0xFFFFFFFF


def max_duplicates(graph: Adjacency) -> int:
    """The largest number of duplicates of an edge. Reads all edges once, at 1 GB/s.

    Each duplicate has its own random number. With one number per source, either all duplicates or none would be
    sampled, and neighbours without duplicates too often.
    """
    indices = graph.indices
    found = []
    for first in range(1, indices.numel(), _EDGES_AT_ONCE):
        last = min(indices.numel(), first + _EDGES_AT_ONCE)
        found.append((indices[first:last] == indices[first - 1 : last - 1]).nonzero().squeeze(1) + first)
    places = torch.cat(found) if found else graph.indptr.new_empty(0)
    list_begins = torch.searchsorted(graph.indptr, places) < torch.searchsorted(graph.indptr, places, right=True)
    places = places[~list_begins]
    if places.numel() == 0:
        return 1
    runs = torch.unique_consecutive(places - torch.arange(places.numel(), device=places.device), return_counts=True)
    return 1 + int(runs[1].max())


def _chosen(indices: Tensor, start: Tensor, degree: Tensor, count: int, key: int, duplicates: int) -> Tensor:
    """[nodes, count], like `choose_labor` for a few nodes."""
    window = count * WINDOW
    places = torch.arange(window, device=start.device)
    first = (((degree * turn_of(key)) >> 32) * (degree > window))[:, None]  # torch.where would copy its 0 to a GPU
    inside = places < degree[:, None]
    position = first + places
    position = torch.where(position < degree[:, None], position, position - degree[:, None]) * inside
    edge = (start[:, None] + position) * inside
    source = indices[edge].to(torch.int64)
    counter = source
    same = inside
    for back in range(1, duplicates):
        same = same & (position >= back) & (indices[(edge - back).clamp(min=0)] == source)
        counter = counter + (same.to(torch.int64) << 32)
    # 31 random bits above the place: one `topk` then gives the places, and no number is negative.
    rank = (shift_right(draws(key, counter), 33) << 32) | places
    best = rank.masked_fill(~inside, _LAST).topk(count, dim=1, largest=False, sorted=True).values
    return position.gather(1, (best & 0xFFFFFFFF).clamp(max=window - 1))
