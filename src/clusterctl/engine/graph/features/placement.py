"""Where a training keeps its features: on every device or node, on disk, or split over the nodes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache as once
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import torch
from torch import Tensor
from torch import distributed as dist

from clusterctl.engine.graph.features.sources import (
    INDEX,
    FeaturesInMemory,
    FeaturesOnDisk,
    FeaturesOnHost,
    Fetched,
    FetchesAhead,
    expected_visits,
    expected_visits_by_type,
    rows_within,
)
from clusterctl.engine.graph.features.split import ID, SplitFeatures
from clusterctl.engine.graph.storage import resident, resident_relations

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.engine.graph.features.sources import Features, FetchAhead
    from clusterctl.engine.graph.storage import EdgeType, G, H
    from clusterctl.engine.task.task import Task

_HOST = torch.device("cpu")
_OF_EDGES = ("indices", "edge_weight", "edge_attr")


def placed(
    graph: G,
    task: Task,
    dtype: torch.dtype,
    cache: int | None,
    start: Callable[[], Tensor],
    fan_out: Sequence[int],
    *,
    split: bool = False,
    host: bool = False,
) -> tuple[G, Features]:
    """The graph on the task's device, and its features: in memory, split over the nodes, or on disk.

    With `split`, `cache` bytes of each node hold copies of other nodes' rows; without, a `cache` leaves the features on
    disk. On one node there is nothing to split. Unless the features are in memory, the graph keeps the mapped `x`.
    With `host`, a GPU leaves the edges, and features that are not on disk, in the node's memory.
    `start` returns the `start` of `expected_visits`; only the rank that fills a cache calls it. A collective of the
    node's ranks, or of all ranks if the features are split.
    """
    features: Features
    on_host = host and task.device != _HOST

    def visits() -> Tensor:
        return expected_visits(graph, start(), fan_out)

    if split and task.fetching is not None:
        features = SplitFeatures(graph.x, task, dtype, cache or 0, visits)
    elif cache is not None and not split:
        features = FeaturesOnDisk(graph.x, task, dtype, cache, visits)
    elif on_host:
        features = FeaturesOnHost(resident(graph, replace(task, device=_HOST), dtype).x, task)
    else:
        graph = resident(graph, task, dtype)
        return graph, FeaturesInMemory(graph.x)
    # Everything else moves to the device.
    kept = {name: value for name in _OF_EDGES if on_host and (value := getattr(graph, name, None)) is not None}
    without: Any = {name: value[:0] for name, value in kept.items()}
    moves = replace(graph, x=graph.x[:0].to(dtype), **without)
    return replace(resident(moves, task, dtype), x=graph.x, **cast("Any", kept)), features


def placed_by_type(
    graph: H,
    task: Task,
    dtype: torch.dtype,
    cache: int | None,
    start: Callable[[], dict[str, Tensor]],
    fan_outs: Mapping[EdgeType, Sequence[int]],
    *,
    split: bool = False,
) -> tuple[H, dict[str, Features], FetchesByType | None]:
    """Like `placed`, for the features of each node type; they share the `cache`, which serves the most visits per byte.

    The last result fetches rows of all types; None if all are in memory. A collective, like `placed`.
    """
    if task.fetching is None if split else cache is None:
        graph = resident_relations(graph, task, dtype)
        return graph, {kind: FeaturesInMemory(x) for kind, x in graph.x.items()}, None

    @once
    def visits() -> dict[str, Tensor]:
        return expected_visits_by_type(graph, start(), fan_outs)

    def visits_of(kind: str) -> Tensor:
        return visits()[kind]

    row_bytes = {kind: x.size(1) * dtype.itemsize + (ID if split else 0) for kind, x in graph.x.items()}
    index = {kind: 0 if split else INDEX * len(x) for kind, x in graph.x.items()}
    rows = torch.zeros(len(row_bytes), dtype=torch.int64)
    if cache and task.leads_node:
        often = [*map(visits_of, row_bytes)]
        rows = torch.tensor(rows_within(cache - sum(index.values()), often, [*row_bytes.values()]))
    dist.broadcast(rows, dist.get_global_rank(task.node, 0), group=task.node)
    kind_of_features = SplitFeatures if split else FeaturesOnDisk
    features = {
        kind: kind_of_features(
            graph.x[kind], task, dtype, index[kind] + int(count) * row_bytes[kind], partial(visits_of, kind)
        )
        for kind, count in zip(row_bytes, rows, strict=True)
    }
    bare = {kind: x[:0].to(dtype) for kind, x in graph.x.items()}
    graph = replace(resident_relations(replace(graph, x=bare), task, dtype), x=graph.x)
    return graph, dict(features), FetchesByType(features, task.device)


# The features of several node types, of which a batch needs rows of each.


if TYPE_CHECKING:
    Gathering: TypeAlias = FeaturesOnDisk | SplitFeatures

Tables: TypeAlias = dict[str, Tensor]


class FetchesByType:
    """Fetches rows of all types together: one thread gathers them, so that every rank exchanges in the same order."""

    def __init__(self, features: Mapping[str, Gathering], device: torch.device) -> None:
        self._features = features
        self._fetches = FetchesAhead(self._gather, device)

    def fetch(self, nodes: Tables) -> FetchAhead[Tables, Tables]:
        """Request the rows of these nodes (int64) of each type."""
        return self._fetches.fetch(nodes)

    def settle(self) -> None:
        """As `Features.settle`. All types share one exchange, so their rounds go on until all types are settled."""
        split = [features for features in self._features.values() if isinstance(features, SplitFeatures)]

        def answer_others() -> None:
            while sum(features.answer() for features in split):  # one round of each type, as in a fetch
                pass

        self._fetches.after(answer_others)

    def _gather(self, nodes: Tables) -> Fetched[Tables]:
        found = {kind: features.gather(nodes[kind]) for kind, features in self._features.items()}
        # The metrics of all types: their bytes, and the rate of all rows.
        counted = max(1, sum(one.counted for one in found.values()))
        numbers: dict[str, float] = {}
        for one in found.values():
            for name, value in one.numbers.items():
                part = value * one.counted / counted if name == "cache_hit_rate" else value
                numbers[name] = numbers.get(name, 0) + part
        numbers = {name: round(value, 4) for name, value in numbers.items()}
        return Fetched({kind: one.rows for kind, one in found.items()}, numbers)
