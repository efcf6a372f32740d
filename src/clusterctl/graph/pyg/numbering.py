"""Numbers nodes in the order in which a sample finds them, like pyg-lib."""

from __future__ import annotations

import torch
from torch import Tensor


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
