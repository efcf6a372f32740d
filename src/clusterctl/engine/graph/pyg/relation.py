"""The edges of one type as PyG's samplers store them, and how a hop samples them: by time or weight if they have any.

`Numbering` numbers the nodes that a sample finds. Weights are those of PyG's `weight_attr`. Without replacement, each
edge of a node gets an exponential waiting time with its weight as the rate, and the shortest waits are taken. This is
equivalent to drawing one edge after another from those remaining (Efraimidis and Spirakis, "Weighted random sampling
with a reservoir", IPL 2006). Edges of weight zero come last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import has_numba, rows_of
from clusterctl.engine.graph.hashing import draws, grid, shift_right
from clusterctl.engine.graph.neighbors import Draw, sample_ranges, take
from clusterctl.engine.graph.sampling import WORTH_COMPILING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from clusterctl.engine.graph.blocks import Adjacency


@dataclass(frozen=True)
class Times:
    """When edges came into being, for temporal sampling."""

    values: Tensor  # per edge, or per source node
    of_sources: bool
    last: bool  # take the latest edges that a seed may see, not random ones


@dataclass(frozen=True)
class Relation:
    """Edges by target (CSC). With times, the edges of each target ascend in time."""

    indptr: Tensor  # integers [targets + 1]
    indices: Tensor  # integers [edges]: the sources
    times: Times | None = None
    weights: Tensor | None = None  # float64 [edges]
    levels: Tensor | None = None  # `summed_levels` of the weights, for draws with replacement

    def __post_init__(self) -> None:
        """Raise RuntimeError, worded as in pyg-lib, if PyG built wrong offsets: edges marked as sorted were not."""
        if not self.indices.is_contiguous():
            raise RuntimeError("Non-contiguous 'col'")


class Kernels(NamedTuple):
    """The sampling loops: in plain torch, or compiled by numba with the same results."""

    sample_ranges: Callable[..., tuple[Tensor, Tensor]]
    end_by_time: EndByTime
    first: Callable[[Tensor, Tensor, int], Tensor]
    numbering: Callable[[Tensor], Numbering]
    seen: Callable[..., tuple[Tensor, Tensor]]


def kernels(edges: int) -> Kernels:
    """The numba kernels if the graph is large enough and numba is installed, otherwise the plain torch ones."""
    if edges >= WORTH_COMPILING and has_numba():
        from clusterctl.engine.graph.pyg import compiled

        return Kernels(
            compiled.sample_ranges_compiled,
            compiled.end_by_time_compiled,
            compiled.first_compiled,
            compiled.CompiledNumbering,  # type: ignore[arg-type]  # the same three methods
            compiled.seen_compiled,
        )
    return Kernels(sample_ranges, end_by_time, first, Numbering, seen)


def sample_edges(
    relation: Relation, nodes: Tensor, counters: Tensor, latest: Tensor | None, draw: Draw, by: Kernels
) -> tuple[Tensor, Tensor]:
    """Sample edges of each node: offsets [nodes + 1] and their places in `indices`, int64.

    If edges have times, only those not later than `latest` [nodes] count.
    """
    start = relation.indptr[nodes].to(torch.int64)
    end = relation.indptr[nodes + 1].to(torch.int64)
    if relation.times is not None and latest is not None:
        times = relation.times
        dtype = torch.promote_types(times.values.dtype, latest.dtype)
        if dtype.is_floating_point:  # torch promotes int64 and float32 to float32, which cannot hold seconds since 1970
            dtype = torch.float64
        values, sources = times.values.to(dtype), relation.indices if times.of_sources else None
        end = by.end_by_time(start, end, latest.to(dtype), values, sources)
        if times.last and draw.count >= 0:
            start = start.maximum(end - draw.count)
        check_sorted(start, end, values, sources)
    where = (start, end - start, counters, draw.count, draw.key)
    if relation.weights is None:
        return by.sample_ranges(*where, replace=draw.replace)
    if relation.levels is not None:
        return sample_weighted_again(relation.levels, *where)
    return sample_weighted(relation.weights, *where, by.first)


# Numbers nodes in the order in which a sample finds them, like pyg-lib.


class Numbering:
    """The nodes of a sample: the seeds first, then new nodes in the order of discovery.

    An id denotes a node, or a node in one seed's tree. Ids are int64 and not negative.
    """

    def __init__(self, seeds: Tensor) -> None:
        self._ids = seeds.to(torch.int64)

    def __len__(self) -> int:
        return self._ids.numel()

    @property
    def ids(self) -> Tensor:
        """All ids so far. Duplicate seeds are repeated."""
        return self._ids

    def add(self, ids: Tensor) -> Tensor:
        """Add the new ones of these ids; returns the row of each, int64. Equal ids share the first row."""
        known = len(self)
        everything = torch.cat([self._ids, ids])
        unique, inverse = torch.unique(everything, return_inverse=True)
        row = torch.full_like(unique, everything.numel())
        row.scatter_reduce_(0, inverse, torch.arange(everything.numel()), "amin")
        is_new = row >= known
        found, order = row[is_new].sort()
        row[is_new.nonzero().squeeze(1)[order]] = torch.arange(known, known + found.numel())
        self._ids = torch.cat([self._ids, everything[found]])
        return row[inverse[known:]]

    def find(self, ids: Tensor) -> Tensor:
        """The row of each of these ids, int64; -1 for ids that are not in the sample."""
        ordered, row = self._ids.sort(stable=True)
        place = torch.searchsorted(ordered, ids).clamp_(max=max(len(self) - 1, 0))
        if not len(self):
            return torch.full_like(ids, -1)
        return torch.where(ordered[place] == ids, row[place], -1)


# Temporal sampling: a seed sees no nodes or edges later than itself.


if TYPE_CHECKING:

    class EndByTime(Protocol):
        """The signature of `end_by_time`."""

        def __call__(
            self, start: Tensor, end: Tensor, latest: Tensor, time: Tensor, sources: Tensor | None
        ) -> Tensor: ...


def end_by_time(start: Tensor, end: Tensor, latest: Tensor, time: Tensor, sources: Tensor | None) -> Tensor:
    """The first edge in each range (int64 `start` and `end`) that is later than `latest`, by bisection, int64.

    `time` is per edge, or per source node if `sources` is given; it ascends within each range.
    """
    low, high = start.clone(), end.clone()
    unsettled = (low < high).nonzero().squeeze(1)
    while unsettled.numel():
        middle = (low[unsettled] + high[unsettled]) // 2
        early = time[middle if sources is None else sources[middle]] <= latest[unsettled]
        low[unsettled] = middle.add(1).where(early, low[unsettled])
        high[unsettled] = high[unsettled].where(early, middle)
        unsettled = unsettled[low[unsettled] < high[unsettled]]
    return low


def seen(
    edges: Adjacency,
    times: Tensor | None,
    ids: Tensor,
    latest: Tensor,
    keys: Tensor,
    sides: tuple[int, int],
    draw: Draw,
    *,
    last: bool,
) -> tuple[Tensor, Tensor]:
    """Sample edges that seeds see: offsets, and the ids of the sources, for each of `ids`, int64.

    An id is that of a node in the tree of a seed: `tree * nodes + node`. `sides` are the numbers of nodes that may be
    sources and targets, `times` those of the edges, ascending for each target, and `latest` those of the seeds, whose
    draws `keys` (int64) key. With `last`, the latest edges are taken.
    """
    tree, nodes = ids // sides[1], ids % sides[1]
    start, end = edges.indptr[nodes], edges.indptr[nodes + 1]
    if times is not None:
        end = end_by_time(start, end, latest[tree], times, None)
        if last and draw.count >= 0:
            start = start.maximum(end - draw.count)
    counters = keys[tree] + nodes
    offsets, places = sample_ranges(start, end - start, counters, draw.count, draw.key, replace=draw.replace)
    owners = tree.repeat_interleave(offsets.diff(), output_size=places.numel())
    return offsets, edges.indices[places].to(torch.int64) + owners * sides[0]


def check_sorted(start: Tensor, end: Tensor, time: Tensor, sources: Tensor | None) -> None:
    """Raise RuntimeError, worded as in pyg-lib, if the last edge of a range is earlier than its first."""
    several = end - start > 1
    first, last = start[several], end[several] - 1
    if sources is not None:
        first, last = sources[first], sources[last]
    if bool((time[first] > time[last]).any()):
        raise RuntimeError("Found invalid non-sorted temporal neighborhood")


_LEVELS = 1 << 31  # resolution of a weight in draws with replacement: integers add up exactly


def checked_weights(weights: Tensor) -> Tensor:
    """The weights as float64. Raises RuntimeError, worded as in torch, if one is negative or not finite."""
    if not bool((weights.isfinite() & (weights >= 0)).all()):
        raise RuntimeError("probability tensor contains either `inf`, `nan` or element < 0")
    return weights.to(torch.float64)


def sample_weighted(
    weights: Tensor,
    start: Tensor,
    degree: Tensor,
    counters: Tensor,
    count: int,
    key: int,
    first: Callable[[Tensor, Tensor, int], Tensor],
) -> tuple[Tensor, Tensor]:
    """Like `neighbors.sample_ranges`, without replacement, by float64 `weights` of all places.

    `first` is the function below or its compiled version. Raises RuntimeError if all weights to draw from are zero.
    """

    def pick(drawn: Tensor) -> Tensor:
        offsets, places = take(start[drawn], degree[drawn], -1, pick)
        own = places - start[drawn].repeat_interleave(degree[drawn], output_size=places.numel())
        keys = draws(key, counters[drawn]).repeat_interleave(degree[drawn], output_size=places.numel())
        uniform = (shift_right(draws(0, keys + own), 11) + 1).to(torch.float64).div_(1 << 53)
        waits = uniform.log_().neg_().div_(weights[places]).nan_to_num_(nan=torch.inf, posinf=torch.inf)
        picks = first(waits, offsets, count)
        _check_sum(waits[picks[0]].isfinite())
        return own[picks]

    return take(start, degree, count, pick)


def sample_weighted_again(
    levels: Tensor, start: Tensor, degree: Tensor, counters: Tensor, count: int, key: int
) -> tuple[Tensor, Tensor]:
    """Like `neighbors.sample_ranges` with replacement, by `summed_levels` of the weights."""

    def pick(drawn: Tensor) -> Tensor:
        begin = levels[start[drawn]]
        total = levels[start[drawn] + degree[drawn]] - begin
        _check_sum(total > 0)
        bits = grid(torch.arange(count), draws(key, counters[drawn]))
        share = shift_right(bits, 11).to(torch.float64) / (1 << 53)
        level = (share * total).to(torch.int64).minimum(total - 1)
        return torch.searchsorted(levels, begin + level, right=True) - 1 - start[drawn]

    return take(start, degree, count, pick, replace=True)


def first(waits: Tensor, offsets: Tensor, count: int) -> Tensor:
    """The places of the `count` shortest waits in each range, shortest first: int64 [count, ranges].

    On ties the first place wins. Each range has more than `count` places.
    """
    owner = rows_of(offsets, waits.numel())
    order = waits.argsort(stable=True)
    order = order[owner[order].argsort(stable=True)]
    return order[offsets[:-1] + torch.arange(count)[:, None]]


def summed_levels(weights: Tensor, indptr: Tensor) -> Tensor:
    """The cumulative sums of the weights, each relative to the largest weight of its target: int64 [edges + 1].

    A weight is rounded to a multiple of 2**-31 of that largest weight.
    """
    owner = rows_of(indptr, weights.numel())
    largest = weights.new_zeros(indptr.numel() - 1).scatter_reduce_(0, owner, weights, "amax")
    shares = (weights / largest[owner]).nan_to_num_(nan=0.0)
    levels = torch.zeros(weights.numel() + 1, dtype=torch.int64)
    torch.cumsum((shares * _LEVELS).round_().to(torch.int64), 0, out=levels[1:])
    return levels


def _check_sum(is_positive: Tensor) -> None:
    if not bool(is_positive.all()):
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
