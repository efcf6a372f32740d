"""Which epoch's weights are kept: those with the best score on the validation split."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.errors import TaskError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from clusterctl.training.objective import Score


class Best:
    """Keeps a copy of all `values` as they were at the best score; of equal scores the earliest."""

    def __init__(self, values: Sequence[Tensor], patience: int) -> None:
        self._values, self._patience = values, patience
        self._kept = [value.clone() for value in values] if patience else []
        self._share, self._waited = -1.0, 0

    def offer(self, score: Score) -> bool:
        """Note a score of the present values; whether `patience` scores in a row were no better."""
        if score.total == 0:
            raise TaskError("the validation split is empty, and train.patience chooses by it", "set train.patience = 0")
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
