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


NOBODY_STOPS = Stops(warned=False, terminated=False)


class LossReading:
    """A loss and who stops, on their way from the device to the host: `numbers`, as `FlatModel` lays them out."""

    def __init__(self, numbers: Tensor, heart: Heart) -> None:
        self._heart = heart
        self._there: torch.cuda.Event | None = None
        if numbers.is_cuda:
            self._numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            self._there = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._there.record()
        else:
            self._numbers = numbers.clone()  # the next step overwrites them

    def read(self) -> tuple[float, Stops]:
        """The whole loss, and whether any rank was asked to stop. Waits for the device to come so far."""
        if self._there is not None:
            self._heart.wait()  # it may be this rank's GPU that waits for the others'
            self._there.synchronize()
            self._heart.go_on()
        loss, *stops = self._numbers.tolist()
        return loss, Stops(*(flag > 0 for flag in stops))


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

    def backward(self, loss: Tensor, stop: StopRequest, due: bool = False) -> LossReading:
        """Differentiate this rank's part of the loss and add up those of all ranks, in one collective.

        What comes back is the whole loss, and whether any rank was asked to stop: all ranks read it at the same step.
        """
        self._clock.enter("compute", "backward")
        self.differentiate(loss)
        return self.add_up(stop, due)

    def differentiate(self, loss: Tensor) -> None:
        """Fill the gradients with those of this rank's part of the loss, and note the loss."""
        self._reduced.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        self._reduced[-4] = loss.detach()

    def add_up(self, stop: StopRequest, due: bool = False) -> LossReading:
        """Sum gradients and loss over all ranks."""
        self._reduced[-3], self._reduced[-2], self._reduced[-1] = stop.warned, stop.terminated, due
        self._clock.enter("communication", "all-reduce")
        self._heart.wait()
        dist.all_reduce(self._reduced)
        self._heart.go_on()
        return LossReading(self._reduced[-4:], self._heart)

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
