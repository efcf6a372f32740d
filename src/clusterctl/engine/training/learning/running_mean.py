"""The running mean of the weights (`train.ema`), which is measured and saved instead of them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from clusterctl.engine.training.state import PartState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


class RunningMean:
    """An exponential moving average of `values`.

    The first steps count more: after step t the decay is (1 + t) / (10 + t), until that reaches `decay`. Otherwise a
    short training would be measured by its initial weights.
    """

    def __init__(self, values: Tensor, decay: float) -> None:
        self._values, self._decay, self._steps = values, decay, 0
        self.mean = values.clone()

    def update(self) -> None:
        """Add the values after a step."""
        self._steps += 1
        decay = min(self._decay, (1 + self._steps) / (10 + self._steps))
        self.mean.lerp_(self._values, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The values are their mean within this context."""
        kept = self._values.clone()
        self._values.copy_(self.mean)
        yield
        self._values.copy_(kept)

    def state(self) -> PartState:
        return PartState({"mean": self.mean, "steps": torch.tensor([self._steps])})

    def load(self, state: PartState) -> None:
        self.mean.copy_(state.same["mean"])
        self._steps = int(state.same["steps"])
