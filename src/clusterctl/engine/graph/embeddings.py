"""Learned rows for the nodes of types without features, in one table that is sharded over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from clusterctl.engine.graph.features.hidden import shared_rows
from clusterctl.engine.graph.features.sources import FeaturesInMemory
from clusterctl.engine.graph.sharded_table import Route, ShardedTable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from clusterctl.engine.task.task import Task


class WantedRows(NamedTuple):
    """Rows of the table for some nodes of each type, which may repeat."""

    route: Route
    places: dict[str, Tensor]  # int64: the place of each node's row among the fetched ones


class Embeddings(nn.Module):
    """A row of `width` numbers for every node of the types in `counts`; see `ShardedTable` for values and updates."""

    def __init__(self, counts: Mapping[str, int], width: int, seed: int, dtype: torch.dtype) -> None:
        super().__init__()
        self._counts, self._first, total = dict(counts), {}, 0
        for kind, count in counts.items():
            self._first[kind] = total
            total += count
        self.width = width
        self.table = ShardedTable(total, width, seed, dtype)

    @property
    def kinds(self) -> Collection[str]:
        return self._counts

    def wanted(self, nodes: Mapping[str, Tensor]) -> WantedRows:
        """What to fetch for these nodes (int64) of each type. Not a collective: it can be computed ahead of time."""
        ids = [nodes[kind] + first for kind, first in self._first.items()]
        distinct, places = torch.unique(torch.cat(ids), return_inverse=True)
        parts = torch.split(places, list(map(len, ids)))
        return WantedRows(self.table.route(distinct), dict(zip(self._first, parts, strict=True)))

    def rows(self, wanted: WantedRows) -> dict[str, Tensor]:
        """The rows of each type. A collective; in training, the table's `collect` must follow the backward."""
        fetched = self.table.fetch(wanted.route)
        return {kind: fetched.index_select(0, places) for kind, places in wanted.places.items()}

    def of_all(self, task: Task, dtype: torch.dtype) -> dict[str, FeaturesInMemory]:
        """The present rows of all nodes of each type, one copy per node of the cluster, or per GPU. A collective."""
        own = self.table.rows.to(dtype)
        rows = shared_rows([own], own, self.table.total, task)
        return {kind: FeaturesInMemory(rows[first : first + self._counts[kind]]) for kind, first in self._first.items()}

    def pretended(self, nodes: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rows for trials at the start that need no other rank: a fixed function of the node."""
        rows = self.table.rows
        waves = torch.arange(1, self.width + 1, device=rows.device, dtype=torch.float64)
        return {kind: torch.sin((nodes[kind][:, None] + 1) * waves).to(rows.dtype) for kind in self._first}


class WithEmbeddings(nn.Module):
    """A user's model, and embeddings of some types; the weights have the names that the model gives them."""

    def __init__(self, network: nn.Module, embeddings: Embeddings) -> None:
        super().__init__()
        self.network, self.embeddings = network, embeddings

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Without the rows of the table, which only `sharded_table.whole_weights` has complete."""
        return self.network.state_dict(*args, **kwargs)
