"""The features of several node types, of which a batch needs rows of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor

from clusterctl.graph.features.ahead import Fetched, FetchesAhead

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.graph.features.ahead import FetchAhead
    from clusterctl.graph.features.sources import FeaturesOnDisk
    from clusterctl.graph.features.split import SplitFeatures

    Gathering: TypeAlias = FeaturesOnDisk | SplitFeatures

Tables: TypeAlias = dict[str, Tensor]


class FetchesByType:
    """Fetches rows of all types together: one thread gathers them, so that every rank exchanges in the same order."""

    def __init__(self, features: Mapping[str, Gathering]) -> None:
        self._features = features
        self._fetches = FetchesAhead(self._gather)

    def fetch(self, nodes: Tables) -> FetchAhead[Tables, Tables]:
        """Request the rows of these nodes (int64) of each type."""
        return self._fetches.fetch(nodes)

    def _gather(self, nodes: Tables) -> Fetched[Tables]:
        found = {kind: features.gather(nodes[kind]) for kind, features in self._features.items()}
        return Fetched({kind: one.rows for kind, one in found.items()}, _together([*found.values()]))


def _together(fetches: list[Fetched[Tensor]]) -> dict[str, float]:
    """The metrics of several fetches: their bytes, and the rate of all rows."""
    counted = max(1, sum(fetch.counted for fetch in fetches))
    numbers: dict[str, float] = {}
    for fetch in fetches:
        for name, value in fetch.numbers.items():
            part = value * fetch.counted / counted if name == "cache_hit_rate" else value
            numbers[name] = numbers.get(name, 0) + part
    return {name: round(value, 4) for name, value in numbers.items()}
