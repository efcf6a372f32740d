"""Which epoch's weights are kept: those with the best score on the validation split."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from clusterctl.errors import Cause, TaskError
from clusterctl.training.state import PartState, Sharded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from clusterctl.graph.sharded_table import ShardedTable
    from clusterctl.training.objective import Score


class Best:
    """Keeps `values` and the rows of `tables` as they were at the best score; of equal scores the earliest."""

    def __init__(self, values: Tensor, patience: int, tables: Sequence[ShardedTable] = ()) -> None:
        self._values, self._patience, self._tables = [values, *(table.rows for table in tables)], patience, tables
        self._kept = [value.clone() for value in self._values] if patience else []
        self._share, self._waited = -1.0, 0

    def state(self) -> PartState:
        """The share and the wait; the weights too, where they may be wanted back."""
        noted = torch.tensor([self._share, self._waited], dtype=torch.float64)
        if not self._patience:
            return PartState({"noted": noted})
        values, *rows = self._kept
        parts = [Sharded(kept, table.start, table.total) for kept, table in zip(rows, self._tables, strict=True)]
        sharded = {f"kept{number}": part for number, part in enumerate(parts)}
        return PartState({"noted": noted, "kept": values}, sharded)

    def load(self, state: PartState) -> None:
        self._share, waited = state.same["noted"].tolist()
        self._waited = int(waited)
        if self._patience:
            _copy([state.same["kept"], *(part.rows for part in state.sharded.values())], self._kept)

    def offer(self, score: Score) -> bool:
        """Note a score of the present values; whether `patience` scores in a row were no better."""
        if score.total == 0:
            raise TaskError(
                "the validation split is empty, and train.patience chooses by it", "set train.patience = 0", Cause.DATA
            )
        if score.share > self._share:
            self._share, self._waited = score.share, 0
            _copy(self._values, self._kept)
        else:
            self._waited += 1
        return self._waited >= self._patience

    def restore(self) -> None:
        """Bring the kept values back."""
        _copy(self._kept, self._values)


def _copy(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source)
