"""Learned rows for nodes without features, in a table that is sharded over the ranks in contiguous ranges.

Only touched rows are communicated (`ShardedTable`). On several types of nodes, one table has the rows of all types
without features (`Embeddings`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist

from clusterctl.engine.graph.features.sources import FeaturesInMemory
from clusterctl.engine.graph.hashing import Purpose, stream
from clusterctl.engine.graph.inference import shared_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from clusterctl.engine.task.task import Task


_ROWS_AT_ONCE = 65536  # drawn from one generator at initialization


class Route(NamedTuple):
    """Which rank holds which of the wanted rows."""

    order: Tensor | None  # sorts the wanted rows by owner; None: they already are
    ids: Tensor  # int64, sorted by owner
    counts: list[int]  # per owner


class ShardedTable(nn.Module):
    """`total` rows of `channels` numbers, initialized like torch.nn.Embedding: standard normal.

    Rank r holds `size` rows from `r * size` on (the last ranks may hold fewer). They are not parameters: a step gets
    the rows that it needs with `fetch`, and their gradients with `collect`. The values do not depend on the number of
    ranks. With `lazy`, the optimizer updates only touched rows.
    """

    rows: Tensor

    def __init__(self, total: int, channels: int, seed: int, dtype: torch.dtype, *, lazy: bool = False) -> None:
        super().__init__()
        self.total, self.lazy = total, lazy
        self._size = max(1, -(-total // dist.get_world_size()))
        self.start = min(total, dist.get_rank() * self._size)
        own = range(self.start, min(total, self.start + self._size))
        rows = torch.empty(len(own), channels, dtype=dtype)
        # Drawn in blocks of the whole table: a row is a function of seed and row, for any number of ranks.
        for block in range(own.start // _ROWS_AT_ONCE, -(-own.stop // _ROWS_AT_ONCE)):
            generator = torch.Generator().manual_seed(stream(Purpose.ROWS, seed, block))
            drawn = torch.randn(_ROWS_AT_ONCE, channels, generator=generator)
            first = block * _ROWS_AT_ONCE
            low, high = max(own.start, first), min(own.stop, first + _ROWS_AT_ONCE)
            rows[low - own.start : high - own.start] = drawn[low - first : high - first]
        self.register_buffer("rows", rows)
        self._fetched: tuple[Route, Tensor] | None = None

    def route(self, ids: Tensor) -> Route:
        """The route to these rows (int64, distinct). Not a collective: it can be computed ahead of time."""
        if dist.get_world_size() == 1:
            return Route(None, ids, [ids.numel()])
        ordered, order = ids.sort()
        bounds = torch.arange(1, dist.get_world_size(), device=ids.device) * self._size
        cuts = torch.searchsorted(ordered, bounds).tolist()
        return Route(order, ordered, [b - a for a, b in zip([0, *cuts], [*cuts, ids.numel()], strict=True)])

    def fetch(self, route: Route) -> Tensor:
        """The rows [wanted, channels], a leaf tensor whose gradient `collect` reads. A collective."""
        asked = route.ids
        if route.order is not None:  # the ids that the ranks request from this one, which `collect` needs, too
            ours = torch.tensor(route.counts, device=route.ids.device)
            theirs = torch.empty_like(ours)
            dist.all_to_all_single(theirs, ours)
            counts = theirs.tolist()
            asked = route.ids.new_empty(sum(counts))
            dist.all_to_all_single(asked, route.ids, counts, route.counts)
            self._asked = (asked, counts)
        with torch.no_grad():
            rows = self.rows.index_select(0, asked - self.start)
            if route.order is not None:
                arrived = rows.new_empty(route.ids.numel(), rows.size(1))
                dist.all_to_all_single(arrived, rows, route.counts, self._asked[1])
                rows = torch.empty_like(arrived)
                rows[route.order] = arrived
        if torch.is_grad_enabled():
            rows.requires_grad_()
            self._fetched = (route, rows)
        return rows

    def collect(self) -> tuple[Tensor, Tensor]:
        """This rank's rows that any rank touched (int64, distinct), and the sums of their gradients. A collective."""
        assert self._fetched is not None
        (route, rows), self._fetched = self._fetched, None
        gradients = rows.grad if rows.grad is not None else torch.zeros_like(rows)
        if route.order is None:
            return route.ids, gradients
        asked, counts = self._asked
        arrived = gradients.new_empty(asked.numel(), gradients.size(1))
        dist.all_to_all_single(arrived, gradients.index_select(0, route.order), counts, route.counts)
        touched, place = torch.unique(asked - self.start, return_inverse=True)
        sums = gradients.new_zeros(touched.numel(), gradients.size(1))
        for part, rows_of_rank in zip(torch.split(place, counts), torch.split(arrived, counts), strict=True):
            sums[part] += rows_of_rank  # rank by rank: a fixed order, and no duplicates within a part
        return touched, sums

    def whole(self) -> Tensor:
        """All rows [total, channels] on rank 0, and no rows on the others. A collective."""
        own = self.rows.new_zeros(self._size, self.rows.size(1))
        own[: len(self.rows)] = self.rows
        leads = dist.get_rank() == 0
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())] if leads else None
        dist.gather(own, parts)
        return torch.cat(parts)[: self.total] if parts else own[:0]


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """`model.state_dict()` with all rows of its sharded tables, complete on rank 0. A collective."""
    tables = {f"{name}.rows": module for name, module in model.named_modules() if isinstance(module, ShardedTable)}
    return model.state_dict() | {name: table.whole() for name, table in tables.items()}


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
        """Without the rows of the table, which only `whole_weights` has complete."""
        return self.network.state_dict(*args, **kwargs)
