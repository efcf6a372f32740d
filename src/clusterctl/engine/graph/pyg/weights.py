"""Weighted edge sampling, for PyG's `weight_attr`.

Without replacement, each edge of a node gets an exponential waiting time with its weight as the rate, and the shortest
waits are taken. This is equivalent to drawing one edge after another from those remaining (Efraimidis and Spirakis,
"Weighted random sampling with a reservoir", IPL 2006). Edges of weight zero come last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import rows_of
from clusterctl.engine.graph.hashing import draws, grid, shift_right
from clusterctl.engine.graph.neighbors import take

if TYPE_CHECKING:
    from collections.abc import Callable

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
