"""Graphs with Reddit's statistics, at any scale and with a seed: degrees, features, classes, homophily.

Lognormal degrees of mean 491 (sigma 1.06, at most 21,657), 602 features around the class's centre, 41 classes, and 70 %
of the edges from nodes of the same class; sources are drawn in proportion to their degrees. Where edges fall is random
beyond that, so caches behave differently on the real graph.
"""

from __future__ import annotations

import torch

from clusterctl.graph.storage import Graph

NODES, DEGREE, FEATURES, CLASSES = 232_965, 491, 602, 41
_SIGMA, _LARGEST, _HOMOPHILY, _NOISE = 1.06, 21_657, 0.7, 6.0
_EDGES_AT_ONCE = 1 << 22
_SPLIT = (0.66, 0.76)  # Reddit's shares of training, validation and test nodes


def reddit_like(scale: float, seed: int = 0) -> Graph:
    """A graph of `scale` times Reddit's nodes and the same average degree; neighbours in no order, some repeated."""
    random = torch.Generator().manual_seed(seed)
    nodes = round(NODES * scale)
    weights = torch.randn(nodes, generator=random, dtype=torch.float64).mul_(_SIGMA).exp_()
    weights *= DEGREE / weights.mean()
    degree = weights.clamp(1, min(_LARGEST, nodes - 1)).to(torch.int64)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degree.cumsum(0)])
    y = torch.randint(CLASSES, (nodes,), generator=random)
    x = torch.randn(CLASSES, FEATURES, generator=random)[y]
    x += _NOISE * torch.randn(nodes, FEATURES, generator=random)
    parts = torch.randperm(nodes, generator=random).tensor_split([round(share * nodes) for share in _SPLIT])
    train, val, test = (part.sort().values for part in parts)
    return Graph(indptr, _sources(degree, weights, y, random), x, y, train, val, test, CLASSES)


def _sources(degree: torch.Tensor, weights: torch.Tensor, y: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Where the edges come from, by target: a position on the line of all weights, or on the class's piece of it."""
    order = y.argsort(stable=True)  # a class's nodes lie next to each other
    line = weights[order].cumsum(0)
    ends = line[y.bincount(minlength=CLASSES).cumsum(0) - 1]
    begins = torch.cat([ends.new_zeros(1), ends[:-1]])
    parts = []
    for targets in torch.split(torch.arange(degree.numel()).repeat_interleave(degree), _EDGES_AT_ONCE):
        at = torch.rand(targets.numel(), generator=random, dtype=torch.float64)
        alike = torch.rand(targets.numel(), generator=random) < _HOMOPHILY
        own = y[targets]
        low = torch.where(alike, begins[own], 0.0)
        high = torch.where(alike, ends[own], ends[-1])
        parts.append(
            order[torch.searchsorted(line, low + at * (high - low)).clamp_(max=order.numel() - 1)].to(torch.int32)
        )
    return torch.cat(parts)
