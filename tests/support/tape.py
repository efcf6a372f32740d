"""A CUDA graph on the CPU: operations are recorded once, and repeated on the same memory without Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tape(TorchDispatchMode):
    """Records every operation with its input and output tensors."""

    def __init__(self) -> None:
        super().__init__()
        self._operations: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self._before: list[tuple[Tensor, Tensor]] = []  # tensors that were written to, and their old values

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the import of torch's compiler takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs
        for argument in func._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                written = [leaf for leaf in tree_leaves(given.get(argument.name)) if isinstance(leaf, Tensor)]
                self._before += [(tensor, tensor.detach().clone()) for tensor in written]
        made = func(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        self._operations.append((func, args, kwargs, tensors))
        return made

    def undo(self) -> None:
        """Restore the values before the recording, which executes nothing on a GPU."""
        with torch._C._AutoDispatchBelowAutograd():
            for tensor, values in reversed(self._before):
                tensor.copy_(values)

    def replay(self) -> None:
        with torch._C._AutoDispatchBelowAutograd():  # autograd ran during the recording
            self._repeat()

    def _repeat(self) -> None:
        for func, args, kwargs, before in self._operations:
            again = [leaf for leaf in tree_leaves(func(*args, **kwargs)) if isinstance(leaf, Tensor)]
            for old, new in zip(before, again, strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def capture(work: Callable[[], None]) -> Callable[[], None]:
    """A function that repeats `work`, whose changes are undone now."""
    tape = Tape()
    with tape:
        work()
    tape.undo()
    return tape.replay
