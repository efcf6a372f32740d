"""Which epoch's weights are kept: those with the best accuracy on the validation split."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from clusterctl.errors import TaskError
from clusterctl.training.state import State

if TYPE_CHECKING:
    from torch import Tensor

    from clusterctl.training.objective import Accuracy


class Best:
    """Keeps a copy of `values` as they were at the best score; of equal scores the earliest."""

    def __init__(self, values: Tensor, patience: int) -> None:
        self._values, self._patience = values, patience
        self._kept = values.clone()
        self._share, self._waited = -1.0, 0

    def state(self) -> State:
        """The share and the wait; the weights too, where they may be wanted back."""
        noted = torch.tensor([self._share, self._waited], dtype=torch.float64)
        return State({"noted": noted, "kept": self._kept} if self._patience else {"noted": noted})

    def load(self, state: State) -> None:
        self._share, waited = state.same["noted"].tolist()
        self._waited = int(waited)
        if self._patience:
            self._kept.copy_(state.same["kept"])

    def offer(self, score: Accuracy) -> bool:
        """Note a score of the present values; whether `patience` scores in a row were no better."""
        if score.total == 0:
            raise TaskError("the validation split is empty, and train.patience chooses by it", "set train.patience = 0")
        if score.share > self._share:
            self._share, self._waited = score.share, 0
            self._kept.copy_(self._values)
        else:
            self._waited += 1
        return self._waited >= self._patience

    def restore(self) -> None:
        """Bring the kept values back."""
        self._values.copy_(self._kept)
