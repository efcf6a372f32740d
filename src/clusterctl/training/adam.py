"""Adam on one vector."""

from __future__ import annotations

import torch
from torch import Tensor

from clusterctl.training.state import State

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8


class Adam:
    """Adam (Kingma and Ba, 2015) with L2 weight decay, as torch.optim.Adam with its default betas.

    torch.optim imports torch's compiler, which costs every rank 1.8 s at its start (torch 2.13); this is the same
    arithmetic on a flat vector of parameters.
    """

    def __init__(self, values: Tensor, gradients: Tensor, lr: float, weight_decay: float) -> None:
        self._values, self._gradients = values, gradients
        self._lr, self._weight_decay = lr, weight_decay
        self._steps = 0
        self._mean = torch.zeros_like(values)
        self._square = torch.zeros_like(values)

    def state(self) -> State:
        return State({"mean": self._mean, "square": self._square, "steps": torch.tensor([self._steps])})

    def load(self, state: State) -> None:
        self._mean.copy_(state.same["mean"])
        self._square.copy_(state.same["square"])
        self._steps = int(state.same["steps"])

    @torch.no_grad()
    def step(self, rate: float = 1.0) -> None:
        """Move the values against the gradients, by `rate` of the learning rate."""
        self._steps += 1
        gradients = self._gradients.add(self._values, alpha=self._weight_decay)
        self._mean.lerp_(gradients, 1 - _BETA1)
        self._square.mul_(_BETA2).addcmul_(gradients, gradients, value=1 - _BETA2)
        scale = (1 - _BETA2**self._steps) ** 0.5
        step_size = rate * self._lr / (1 - _BETA1**self._steps)
        self._values.addcdiv_(self._mean, self._square.sqrt().div_(scale).add_(_EPSILON), value=-step_size)
