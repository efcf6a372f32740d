"""The edges of one type as PyG's samplers store them, and how a hop samples them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import torch

from clusterctl.graph.neighbors import sample_ranges
from clusterctl.graph.pyg.numbering import Numbering
from clusterctl.graph.pyg.times import check_sorted, end_by_time
from clusterctl.graph.pyg.weights import first, sample_weighted, sample_weighted_again
from clusterctl.graph.sampling import WORTH_COMPILING

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from clusterctl.graph.pyg.times import EndByTime


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
    levels: Tensor | None = None  # `pyg_weights.summed_levels` of the weights, for draws with replacement

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


def kernels(edges: int) -> Kernels:
    """The numba kernels if the graph is large enough and numba is installed, otherwise the plain torch ones."""
    if edges >= WORTH_COMPILING and find_spec("numba") is not None:
        from clusterctl.graph.pyg import compiled

        return Kernels(
            compiled.sample_ranges_compiled,
            compiled.end_by_time_compiled,
            compiled.first_compiled,
            compiled.CompiledNumbering,  # type: ignore[arg-type]  # the same three methods
        )
    return Kernels(sample_ranges, end_by_time, first, Numbering)


@dataclass(frozen=True)
class Draw:
    """How a hop samples one relation: `count` edges per node (-1: all), keyed by `key` and each node's counter."""

    count: int
    key: int
    replace: bool


def sample_edges(
    relation: Relation, nodes: Tensor, counters: Tensor, latest: Tensor | None, draw: Draw, by: Kernels
) -> tuple[Tensor, Tensor]:
    """Sample edges of each node: offsets [nodes + 1] and their places in `indices`, int64.

    If edges have times, only those not later than `latest` [nodes] count.
    """
    start = relation.indptr[nodes].to(torch.int64)
    end = relation.indptr[nodes + 1].to(torch.int64)
    if relation.times is not None and latest is not None:
        start, end = _seen(relation, relation.times, start, end, latest, draw.count, by)
    where = (start, end - start, counters, draw.count, draw.key)
    if relation.weights is None:
        return by.sample_ranges(*where, replace=draw.replace)
    if relation.levels is not None:
        return sample_weighted_again(relation.levels, *where)
    return sample_weighted(relation.weights, *where, by.first)


def _seen(
    relation: Relation, times: Times, start: Tensor, end: Tensor, latest: Tensor, count: int, by: Kernels
) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(times.values.dtype, latest.dtype)
    values, sources = times.values.to(dtype), relation.indices if times.of_sources else None
    end = by.end_by_time(start, end, latest.to(dtype), values, sources)
    if times.last and count >= 0:
        start = start.maximum(end - count)
    check_sorted(start, end, values, sources)
    return start, end
