"""Training support for a user's model: ranks agree on its buffers, and unused parameters are reported once."""

from __future__ import annotations

import torch
from torch import distributed as dist
from torch import nn

from clusterctl.errors import Cause, TaskError
from clusterctl.graph.hashing import Purpose, stream
from clusterctl.training.state import PartState


class OwnTraining:
    """A model in training; `name` is used in messages."""

    def __init__(self, model: nn.Module, name: str, rank: int) -> None:
        self._model, self._name, self._rank = model, name, rank
        self._unused: _UnusedParameters | None = _UnusedParameters(model)
        self._has_stepped, self._has_agreed = False, True

    def begin_step(self, *key: int) -> None:
        """Call before each step's forward, with a unique `key`. A collective."""
        if self._unused is not None and self._has_stepped:
            names = self._unused.names()
            if names and self._rank == 0:
                print(f"{self._name}: no loss depends on {', '.join(names)}")
            self._unused = None
        self.agree_on_buffers()
        # The model may use torch's own generator: its draws must be the same after a resume.
        torch.manual_seed(stream(Purpose.DROPOUT, *key, self._rank))
        self._has_stepped, self._has_agreed = True, False

    def agree_on_buffers(self) -> None:
        """Average the buffers that each rank updated from its own seeds in a step. Repeated calls do nothing.

        Do not call it within a step: the backward needs the original buffers. A collective if there are buffers.
        """
        if not self._has_agreed and dist.get_world_size() > 1:
            with torch.no_grad():
                for buffer in self._model.buffers():
                    if buffer.is_floating_point():
                        dist.all_reduce(buffer)
                        buffer /= dist.get_world_size()
        self._has_agreed = True

    def state(self) -> PartState:
        """The buffers, such as the statistics of a BatchNorm. A collective after a step."""
        self.agree_on_buffers()
        return PartState({name: buffer.view(-1) for name, buffer in self._model.named_buffers()})

    def load(self, state: PartState) -> None:
        for name, buffer in self._model.named_buffers():
            buffer.view(-1).copy_(state.same[name])

    def no_number(self, place: str) -> TaskError:
        """The error for a loss that is not finite; `place` is the part of the model that caused it."""
        message = f"the loss is not finite: {place} of {self._name} gives NaN or infinity"
        return TaskError(message, "lower train.lr, or set train.clip_norm = 1", Cause.USER)


class _UnusedParameters:
    """Records the parameters without a gradient; call `names` once, after the first backward."""

    def __init__(self, model: nn.Module) -> None:
        self._left = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: self._left.discard(name))  # type: ignore[no-untyped-call]
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        ]

    def names(self) -> list[str]:
        for hook in self._hooks:
            hook.remove()
        return sorted(self._left)
