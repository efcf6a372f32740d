"""Tensors that claim to be on a GPU, with their values on the CPU: for tests on a machine without a GPU.

Torch's own fake tensors have no values, so code that reads one fails. These have values, and every read is counted,
because the host would wait for a real GPU. Autograd does not work, as its engine needs a real GPU.

A `Tape` is a CUDA graph on the CPU: operations are recorded once, and repeated on the same memory without Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import UninitializedParameter
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

GPU = torch.device("cuda", 0)
_CPU = torch.device("cpu")
_ASKING = {  # these read a value, or a size that depends on values
    *("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "bincount"),
    *("_unique", "_unique2", "unique_dim", "unique_consecutive"),
}
_MOVING = {"to", "cpu", "cuda", "copy_", "tensor", "as_tensor"}


class PretendedTensor(Tensor):
    """A tensor on the GPU, whose values are `host`."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> PretendedTensor:
        layout = {"strides": host.stride(), "storage_offset": host.storage_offset(), "dtype": host.dtype}
        made: PretendedTensor = Tensor._make_wrapper_subclass(cls, host.size(), device=GPU, **layout)  # type: ignore[attr-defined]
        made.host = host
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Only collectives get here, as function modes do not see them."""
        func(*tree_map(_host, args), **tree_map(_host, kwargs or {}))
        return args[0], None


class HostQuestions(TorchDispatchMode):
    """Appends to `asked` what the host would wait for if all tensors were on a GPU, including backward passes."""

    def __init__(self, asked: list[str]) -> None:
        super().__init__()
        self._asked = asked

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the import of torch's compiler takes seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = func.overloadpacket.__name__, kwargs or {}
        hidden_size = {
            "repeat_interleave": kwargs.get("output_size") is None,
            "segment_reduce": not kwargs.get("unsafe"),
            **dict.fromkeys(("index", "index_put_", "index_put"), _has_mask(args)),
        }
        if name in _ASKING or hidden_size.get(name):
            self._asked.append(str(func))
        return func(*args, **kwargs)


class Lists(TorchFunctionMode):
    """Appends what is not an operation on the CPU: conversions to lists, and numbers copied to a GPU as tensors."""

    def __init__(self, asked: list[str]) -> None:
        super().__init__()
        self._asked = asked

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name == "tolist" or (name == "where" and any(isinstance(value, int | float) for value in args)):
            self._asked.append(name)
        return func(*args, **(kwargs or {}))


class Watch(Protocol):
    """Learns of every operation on a GPU, see `pretended_streams`."""

    def operation(self, name: str, read: list[Tensor], written: list[Tensor]) -> None:
        """A kernel or copy was queued. The tensors are those on the host with the values; it may raise."""

    def finished(self, name: str) -> None:
        """The host waited for what the current stream holds."""

    def copied_from_pageable(self, name: str) -> None:
        """A copy to the GPU was queued without waiting, from memory that is not pinned."""

    def made(self, tensor: PretendedTensor) -> None:
        """A tensor or view was made."""


class OnGpu(TorchFunctionMode):
    """Within it, `cuda` exists: reads from it are appended to `asked`, and mixing devices raises RuntimeError."""

    def __init__(self, asked: list[str], watch: Watch | None = None) -> None:
        super().__init__()
        self._asked, self._watch = asked, watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, given = getattr(func, "__name__", ""), (args, kwargs or {})
        if name == "_parse_to":  # nn.Module.to parses its arguments with it
            return func(*args, **(kwargs or {}))
        if name == "_has_compatible_shallow_copy_type":  # so that nn.Module.to makes new parameters
            return False
        if name == "pin_memory":
            if isinstance(args[0], PretendedTensor):
                raise RuntimeError("cannot pin a tensor on a GPU, only dense CPU tensors can be pinned")  # as torch
            return _pinned(args[0].clone() if self._watch else args[0])
        if name == "is_pinned":
            return hasattr(args[0], "is_pretended_pinned")
        if (kwargs or {}).get("pin_memory"):
            return _pinned(func(*args, **{key: value for key, value in (kwargs or {}).items() if key != "pin_memory"}))
        if name == "__get__" and func.__self__ in (Tensor.device, Tensor.is_cuda):
            return GPU if func.__self__ is Tensor.device and isinstance(args[0], PretendedTensor) else func(*args)
        leaves = tree_leaves(given)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if any(isinstance(tensor, UninitializedParameter) for tensor in tensors):
            return func(*args, **(kwargs or {}))  # a lazy layer, which has no values yet
        devices = [leaf for leaf in leaves if isinstance(leaf, torch.device)]
        were_on_gpu = any(isinstance(tensor, PretendedTensor) for tensor in tensors)
        on_gpu = any(device.type == "cuda" for device in devices) if devices else were_on_gpu and name != "cpu"
        if name in _MOVING:
            mixed = len({tensor.device for tensor in tensors}) > 1
            if (mixed or on_gpu != were_on_gpu) and not (kwargs or {}).get("non_blocking"):
                self._asked.append(f"{name}, from one device to another")
            elif self._watch and on_gpu and not were_on_gpu and not hasattr(args[0], "is_pretended_pinned"):
                self._watch.copied_from_pageable(name)
        elif not devices or len(tensors) > 1:
            _check_devices(name, tensors)
        known = {id(tensor.host): tensor for tensor in tensors if isinstance(tensor, PretendedTensor)}
        args, kwargs = tree_map(_host, given)
        questions: list[str] = []
        with HostQuestions(questions), Lists(questions):
            made = func(*args, **kwargs)
        if were_on_gpu:
            self._asked += questions
        if self._watch and (on_gpu or were_on_gpu):
            _report(self._watch, name, [*known.values()], args, kwargs, made if on_gpu else None, asks=bool(questions))
            if questions or (were_on_gpu and not on_gpu and name in _MOVING):
                self._watch.finished(name)

        def placed(value: Any) -> Any:
            if not on_gpu or not isinstance(value, Tensor):
                return value
            if id(value) in known:
                return known[id(value)]
            tensor = PretendedTensor(value)
            if self._watch:
                self._watch.made(tensor)
            return tensor

        return tree_map(placed, made)


@contextmanager
def counted(device: torch.device, watch: Watch | None = None) -> Iterator[list[str]]:
    """The reads from `device` within the block; the CPU is treated as if it were a GPU."""
    asked: list[str] = []
    modes = [OnGpu(asked, watch)] if device.type == "cuda" else [HostQuestions(asked), Lists(asked)]
    with ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode)
        yield asked


def _pinned(tensor: Tensor) -> Tensor:
    tensor.is_pretended_pinned = True  # type: ignore[attr-defined]
    return tensor


def _report(
    watch: Watch, name: str, known: list[PretendedTensor], args: Any, kwargs: Any, made: Any, *, asks: bool
) -> None:
    """Pass on what an operation read and wrote; views and questions about shapes are none."""
    read = [tensor.host for tensor in known]
    before = {tensor.untyped_storage().data_ptr() for tensor in read}
    leaves = [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
    written = [leaf for leaf in leaves if leaf.untyped_storage().data_ptr() not in before]
    in_place = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    changed = kwargs.get("out") if "out" in kwargs else args[0] if in_place else None
    written += [leaf for leaf in tree_leaves(changed) if isinstance(leaf, Tensor)]
    if written or asks or (name in _MOVING and made is None):
        watch.operation(name, read, written)


def _check_devices(name: str, tensors: list[Tensor]) -> None:
    """Raise RuntimeError for tensors on both devices; scalars may be on the CPU."""
    on_gpu = [isinstance(tensor, PretendedTensor) for tensor in tensors if tensor.dim() or tensor.device != _CPU]
    if any(on_gpu) and not all(on_gpu):
        raise RuntimeError(f"{name}: tensors on the CPU and on the GPU")


def _host(value: Any) -> Any:
    if isinstance(value, PretendedTensor):
        return value.host
    return _CPU if isinstance(value, torch.device) else value


def _has_mask(args: Any) -> bool:
    return any(isinstance(leaf, Tensor) and leaf.dtype == torch.bool for leaf in tree_leaves(args[1:2]))


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
