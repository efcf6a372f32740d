"""Training support for a user's model: ranks agree on its buffers, and unused parameters are reported once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import distributed as dist
from torch import nn

from clusterctl.errors import Cause, TaskError
from clusterctl.graph.hashing import Purpose, stream
from clusterctl.training.state import PartState, flattened, put, untrained

if TYPE_CHECKING:
    from torch import Tensor

    from clusterctl.task.task import Task


class OwnTraining:
    """A model in training; `name` is used in messages."""

    def __init__(self, model: nn.Module, name: str, task: Task) -> None:
        self._model, self._name, self._rank, self._group = model, name, task.place.rank, task.agreeing
        self._unused: _UnusedParameters | None = _UnusedParameters(model)
        self._has_stepped, self._has_agreed = False, True
        self._agreed = {name: _Seen(tensor) for name, tensor in untrained(model).items()}
        self._unversioned: set[str] = set()  # changed through `.data`, which the version of a tensor does not count

    def begin_step(self, *key: int) -> None:
        """Call before each step's forward, with a unique `key`. A collective."""
        if self._unused is not None and self._has_stepped:
            names = self._unused.names()
            if names and self._rank == 0:
                print(f"{self._name}: no loss depends on {', '.join(names)}")
        self.agree_on_buffers(thoroughly=self._unused is not None)
        if self._has_stepped:
            self._unused = None
        # The model may use torch's own generator: its draws must be the same after a resume.
        torch.manual_seed(stream(Purpose.DROPOUT, *key, self._rank))
        self._has_stepped, self._has_agreed = True, False

    def agree_on_buffers(self, *, thoroughly: bool = True) -> None:
        """Average the buffers that a rank updated from its own seeds in a step. Repeated calls do nothing.

        Constant ones cost nothing; `thoroughly` compares their content. Do not call it within a step: the backward
        needs the original buffers. A collective if there are buffers.
        """
        if not self._has_agreed and dist.get_world_size() > 1:
            with torch.no_grad():
                self._average(thoroughly=thoroughly)
        self._has_agreed = True

    def _average(self, *, thoroughly: bool) -> None:
        tensors = {name: tensor for name, tensor in untrained(self._model).items() if tensor.is_floating_point()}
        if not tensors:
            return
        if thoroughly:
            seen = self._agreed
            same = [name for name, tensor in tensors.items() if seen[name].is_latest(tensor)]
            self._unversioned |= {name for name in same if seen[name].differs(tensors[name])}
        changed = [name in self._unversioned or not self._agreed[name].is_latest(tensors[name]) for name in tensors]
        flags = torch.tensor(changed, dtype=torch.uint8)
        dist.all_reduce(flags, dist.ReduceOp.MAX, group=self._group)
        for (name, tensor), flag in zip(tensors.items(), flags.tolist(), strict=True):
            if flag:
                whole = tensor.contiguous()
                dist.all_reduce(whole)
                tensor.copy_(whole / dist.get_world_size())
                self._agreed[name] = _Seen(tensor)

    def state(self) -> PartState:
        """The buffers, such as the statistics of a BatchNorm. A collective after a step."""
        self.agree_on_buffers()
        tensors = untrained(self._model)
        frozen = {name for name, parameter in self._model.named_parameters() if name in tensors}
        return PartState({name: flattened(tensor) for name, tensor in tensors.items()}, optional=frozen)

    def load(self, state: PartState) -> None:
        for name, tensor in untrained(self._model).items():
            if name in state.same:
                put(tensor, state.same[name])
                self._agreed[name] = _Seen(tensor)

    def no_number(self, place: str) -> TaskError:
        """The error for a loss that is not finite; `place` is the part of the model that caused it; empty: the data."""
        if not place:
            message = "the loss is not finite: the features x of the data have NaN or infinity"
            return TaskError(message, "fill them where the data is made, or leave those nodes out", Cause.DATA)
        message = f"the loss is not finite: {place} of {self._name} gives NaN or infinity"
        return TaskError(message, "lower train.lr, or set train.clip_norm = 1", Cause.USER)


class _Seen:
    """A tensor at one moment. PyTorch counts the writes to it, under a private name."""

    def __init__(self, tensor: Tensor) -> None:
        self._writes, self._content = (tensor.data_ptr(), tensor._version), tensor.clone()  # noqa: SLF001

    def is_latest(self, tensor: Tensor) -> bool:
        return (tensor.data_ptr(), tensor._version) == self._writes  # noqa: SLF001

    def differs(self, tensor: Tensor) -> bool:
        return not torch.equal(tensor, self._content)


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
