"""A model's parameters as one vector, and their gradients as another.

One collective then averages everything, in the order of the parameters. DistributedDataParallel rebuilds its buckets
after a process's first backward, so with 3 or more ranks a resumed run adds in a different order; and it weights ranks
equally, not seeds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from clusterctl.engine.task.step_clock import StepClock
from clusterctl.engine.training.state import PartState
from clusterctl.shared.record.heartbeats import Heart

if TYPE_CHECKING:
    from torch import nn

    from clusterctl.shared.node.signals import StopRequest


class Stops(NamedTuple):
    """Whether any rank was asked to stop; the same on all ranks."""

    warned: bool
    terminated: bool
    due: bool = False  # a checkpoint is due


NOBODY_STOPS = Stops(warned=False, terminated=False)


class LossReading:
    """A loss and stop flags in transfer from the device to the host: `numbers`, in the layout of `FlatModel`."""

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
        """The loss over all ranks, and whether any rank was asked to stop. Waits for the device."""
        if self._there is not None:
            self._heart.wait()  # this rank's GPU may be waiting for the others
            self._there.synchronize()
            self._heart.go_on()
        loss, *stops = self._numbers.tolist()  # sums over the ranks: a flag is above 0 if any rank has set it
        return loss, Stops(*(flag > 0 for flag in stops))


class Differentiated(NamedTuple):
    """A loss whose gradients were computed with it, without autograd."""

    loss: Tensor  # 0-dimensional
    gradients: Tensor  # of all parameters, one after the other


class FlatModel:
    """Moves the trained parameters of `model` into one vector; parameters and gradients become views of vectors.

    `clock` and `heart` are notified when this rank waits for the others.
    """

    def __init__(self, model: nn.Module, clock: StepClock | None = None, heart: Heart | None = None) -> None:
        self._clock, self._heart = clock or StepClock(), heart or Heart()
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.values = torch.cat([parameter.detach().flatten() for parameter in parameters])
        self._reduced = self.values.new_zeros(self.values.numel() + 4)  # gradients, loss, warned, terminated, due
        self.gradients = self._reduced[:-4]
        # Views, so that nothing is copied at a step: autograd adds in place to a `grad` that is there.
        start = 0
        for parameter in parameters:
            part = slice(start, start := start + parameter.numel())
            parameter.data = self.values[part].view_as(parameter)
            parameter.grad = self.gradients[part].view_as(parameter)

    def broadcast(self) -> None:
        """Copy the parameters of rank 0 to all ranks."""
        dist.broadcast(self.values, 0)

    def backward(
        self, loss: Tensor | Differentiated, stop: StopRequest, due: bool = False, *, further: bool = False
    ) -> LossReading:
        """`differentiate` the last part of a step, then `add_up`."""
        self._clock.enter("compute", "backward")
        self.differentiate(loss, further=further)
        return self.add_up(stop, due)

    def differentiate(self, loss: Tensor | Differentiated, *, further: bool = False) -> None:
        """Compute the gradients of this rank's part of the loss, and store the loss next to them.

        If it is a `further` part of the same step, add both to those of the parts before it.
        """
        if not further:
            self._reduced.zero_()
        if isinstance(loss, Differentiated):
            self.gradients.add_(loss.gradients)
            loss = loss.loss
        else:
            loss.backward()  # type: ignore[no-untyped-call]
        self._reduced[-4] += loss.detach()

    def add_up(self, stop: StopRequest, due: bool = False) -> LossReading:
        """Sum gradients and loss over all ranks, in one collective.

        The reading is the loss over all ranks, and whether any rank was asked to stop; all ranks read it at the same
        step.
        """
        for place, is_set in zip((-3, -2, -1), (stop.warned, stop.terminated, due), strict=True):
            if is_set:  # `differentiate` has set all to 0, and three writes are 7 us of a small step
                self._reduced[place] = 1
        self._clock.enter("communication", "all-reduce")
        if dist.get_world_size() > 1:  # of one rank, the sum is there: gloo's thread would take 0.1 ms of a small step
            self._heart.wait()
            dist.all_reduce(self._reduced)
            self._heart.go_on()
        return LossReading(self._reduced[-4:], self._heart)

    def agree(self, stop: StopRequest, due: bool = False) -> Stops:
        """The stops that `add_up` reads, without a loss."""
        flags = self._reduced[-3:]
        flags[0], flags[1], flags[2] = stop.warned, stop.terminated, due
        dist.all_reduce(flags)
        return Stops(*(flag > 0 for flag in flags.tolist()))

    def state(self) -> PartState:
        return PartState({"values": self.values})

    def load(self, state: PartState) -> None:
        self.values.copy_(state.same["values"])
