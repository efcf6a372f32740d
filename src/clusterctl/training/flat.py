"""A model's parameters as one vector, and their gradients as another.

One collective then averages everything, in the order of the parameters. DistributedDataParallel orders its buckets
anew after a process's first backward, so from 3 ranks on a resumed run adds up differently; and it weighs ranks, not
seeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from clusterctl.runs.heartbeats import Heart
from clusterctl.task.step_clock import StepClock
from clusterctl.training.state import PartState

if TYPE_CHECKING:
    from torch import nn

    from clusterctl.runs.signals import StopRequest


class Stops(NamedTuple):
    """Whether any rank was asked to stop, as all ranks know it."""

    warned: bool
    terminated: bool
    due: bool = False  # rank 0 finds that it is time for a checkpoint


class FlatModel:
    """Moves the trained parameters of `model` into one vector, in place: they and their gradients become views.

    `clock` and `heart` learn when this rank waits for the others.
    """

    def __init__(self, model: nn.Module, clock: StepClock | None = None, heart: Heart | None = None) -> None:
        self._clock, self._heart = clock or StepClock(), heart or Heart()
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.values = torch.cat([parameter.detach().flatten() for parameter in parameters])
        self._reduced = self.values.new_zeros(self.values.numel() + 4)  # gradients, loss, warned, terminated, due
        self.gradients = self._reduced[:-4]
        start = 0
        for parameter in parameters:
            part = slice(start, start := start + parameter.numel())
            parameter.data = self.values[part].view_as(parameter)
            parameter.grad = self.gradients[part].view_as(parameter)

    def broadcast(self) -> None:
        """Begin with the parameters of rank 0 everywhere."""
        dist.broadcast(self.values, 0)

    def backward(self, loss: Tensor, stop: StopRequest, due: bool = False) -> tuple[float, Stops]:
        """Differentiate this rank's part of the loss and add up those of all ranks, in one collective.

        Returns the whole loss, and whether any rank was asked to stop: all ranks learn it at the same step.
        """
        self._reduced.zero_()
        self._clock.enter("compute", "backward")
        loss.backward()  # type: ignore[no-untyped-call]
        self._reduced[-4] = loss.detach()
        self._reduced[-3], self._reduced[-2], self._reduced[-1] = stop.warned, stop.terminated, due
        self._clock.enter("communication", "all-reduce")
        self._heart.wait()
        dist.all_reduce(self._reduced)
        whole, *stops = self._reduced[-4:].tolist()
        self._heart.go_on()
        return whole, Stops(*(flag > 0 for flag in stops))

    def agree(self, stop: StopRequest, due: bool = False) -> Stops:
        """The stops that `backward` returns, without anything to differentiate."""
        flags = self._reduced[-3:]
        flags[0], flags[1], flags[2] = stop.warned, stop.terminated, due
        dist.all_reduce(flags)
        return Stops(*(flag > 0 for flag in flags.tolist()))

    def state(self) -> PartState:
        return PartState({"values": self.values})

    def load(self, state: PartState) -> None:
        self.values.copy_(state.same["values"])
