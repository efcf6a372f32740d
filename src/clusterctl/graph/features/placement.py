"""Where a training keeps its features: in the memory of every node, on disk, or split over the nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from clusterctl.graph.features.sources import FeaturesInMemory, FeaturesOnDisk, expected_visits
from clusterctl.graph.features.split import SplitFeatures
from clusterctl.graph.storage import resident

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor

    from clusterctl.graph.features.sources import Features
    from clusterctl.graph.storage import G
    from clusterctl.task.task import Task


def placed(
    graph: G,
    task: Task,
    dtype: torch.dtype,
    cache: int | None,
    start: Callable[[], Tensor],
    fan_out: Sequence[int],
    *,
    split: bool = False,
) -> tuple[G, Features]:
    """The graph on the task's device, and its features: in memory, split over the nodes, or on disk.

    With `split`, `cache` bytes of each node hold copies of other nodes' rows; without, a `cache` leaves the features on
    disk. On one node there is nothing to split. Unless the features are in memory, the graph keeps the mapped `x`.
    `start` returns the `start` of `expected_visits`; only the rank that fills a cache calls it. A collective of the
    node's ranks, or of all ranks if the features are split.
    """
    features: Features

    def visits() -> Tensor:
        return expected_visits(graph, start(), fan_out)

    if split and task.fetching is not None:
        features = SplitFeatures(graph.x, task, dtype, cache or 0, visits)
    elif cache is not None and not split:
        features = FeaturesOnDisk(graph.x, task, dtype, cache, visits)
    else:
        graph = resident(graph, task, dtype)
        return graph, FeaturesInMemory(graph.x)
    return replace(resident(replace(graph, x=graph.x[:0].to(dtype)), task, dtype), x=graph.x), features
