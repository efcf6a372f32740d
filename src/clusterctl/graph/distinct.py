"""Rows of which many are equal, as of nodes that have the same features and neighbours: computed once, then copied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clusterctl.graph.collection import Rows, sum_rows
from clusterctl.graph.hashing import draws

_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Distinct:
    """A table whose row `i` is `rows[of[i]]`: of equal rows there is one."""

    rows: Tensor  # [distinct, channels]
    of: Tensor  # int64 [rows]

    def select(self, wanted: Tensor) -> Copied:
        """The table's rows with these int64 numbers, of equal ones one."""
        which, place, counts = torch.unique(self.of.index_select(0, wanted), return_inverse=True, return_counts=True)
        bounds = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return Copied(self.rows.index_select(0, which), place, (bounds, place.argsort(stable=True)))

    def select_all(self, wanted: Tensor) -> Copied:
        """The same with the equal ones too, where little is computed of each."""
        return Copied(self.rows.index_select(0, self.of.index_select(0, wanted)))


@dataclass(frozen=True)
class Copied:
    """Row `i` is `rows[place[i]]`; without `place` it is `rows[i]`."""

    rows: Tensor  # [distinct, channels]
    place: Tensor | None = None  # int64 [all]
    copies: Rows | None = None  # the `i` that have each of `rows`

    def spread(self, values: Tensor) -> Tensor:
        """What `values` [distinct, any] of the distinct rows are for all rows."""
        if self.place is None:
            return values
        return _Spread.apply(values, self.place, self.copies)  # type: ignore[no-any-return, no-untyped-call]


class _Spread(torch.autograd.Function):
    """Its gradient is a sum over bags; torch's own adds row by row, on a GPU in any order."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, place: Tensor, copies: Rows) -> Tensor:
        ctx.copies = copies
        return values.index_select(0, place)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return sum_rows(ctx.copies, gradients[0].contiguous()), None, None


def distinct(rows: Tensor) -> Distinct:
    """The table of these floats [rows, channels]."""
    factors = draws(0, torch.arange(rows.size(1), device=rows.device))
    bits = {4: torch.int32, 8: torch.int64}[rows.element_size()]
    keys = [(part.view(bits) * factors).sum(1) for part in torch.split(rows.contiguous(), _ROWS_AT_ONCE)]
    different, of = torch.unique(torch.cat(keys), return_inverse=True)
    number = torch.arange(of.numel(), device=of.device)
    found = Distinct(rows[torch.empty_like(different).scatter_(0, of, number)], of)
    collided = not torch.equal(found.rows.index_select(0, of), rows)
    return Distinct(rows, number) if collided else found
