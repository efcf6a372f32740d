"""Training state as tensors: what each part needs to resume exactly, and the rows that each rank writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from clusterctl.engine.graph.embeddings import ShardedTable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from torch import nn

_AS_THEY_ARE = {
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.bool,
}
_MIN_SPLIT = 1 << 14  # elements; only rank 0 writes a smaller tensor


class Sharded(NamedTuple):
    """Rows [start, start + len(rows)) of a tensor of `total` rows that is sharded over the ranks.

    Together the ranks hold all rows. The ranges may change at the next start: rows are found by their numbers.
    """

    rows: Tensor
    start: int
    total: int


class PartState(NamedTuple):
    """Tensors by name: those that are equal on all ranks, and those that are sharded over the ranks.

    They may be views of the live tensors, as they are copied or read into immediately. `optional` names some of `same`
    that checkpoints of earlier versions lack; `load` then gets a state without them.
    """

    same: Mapping[str, Tensor]
    sharded: Mapping[str, Sharded] = {}
    optional: Collection[str] = ()


@runtime_checkable
class Stateful(Protocol):
    """A part of a training that checkpoints include: model, optimizer, selection, an objective with extra state."""

    def state(self) -> PartState:
        """The current state, with the same names, shapes and dtypes in every process of a run."""

    def load(self, state: PartState) -> None:
        """Restore `state`, which has the names of `state()` and, of sharded tensors, this rank's current rows."""


def untrained(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that a forward may change, but no optimizer: buffers and frozen parameters, by name.

    Without sparse ones, and without the rows of sharded tables, which have an optimizer.
    """
    rows = {module.rows.data_ptr() for module in model.modules() if isinstance(module, ShardedTable)}
    frozen = {name: parameter for name, parameter in model.named_parameters() if not parameter.requires_grad}
    found = {**dict(model.named_buffers()), **frozen}
    dense = {name: tensor.detach() for name, tensor in found.items() if tensor.layout == torch.strided}
    return {name: tensor for name, tensor in dense.items() if tensor.data_ptr() not in rows or not tensor.numel()}


def flattened(tensor: Tensor) -> Tensor:
    """The elements of a tensor of any shape, strides and dtype, in a form that a checkpoint can hold."""
    flat = tensor.reshape(-1)
    return flat if flat.dtype in _AS_THEY_ARE else flat.contiguous().view(torch.uint8)


def put(target: Tensor, flat: Tensor) -> None:
    """Copy what `flattened` returned, unless `target` is equal: it may be an expanded view, which is read-only."""
    value = (flat if flat.dtype == target.dtype else flat.view(target.dtype)).reshape(target.shape).to(target.device)
    if not torch.equal(target, value):
        target.copy_(value)


def pieces(parts: Mapping[str, Stateful], rank: int, world_size: int) -> dict[str, Sharded]:
    """The rows that `rank` writes, by "part.tensor": views of the live tensors."""

    def share(tensor: Tensor) -> Sharded:
        rows = tensor.size(0)
        if tensor.numel() < _MIN_SPLIT:
            return Sharded(tensor if rank == 0 else tensor[:0], 0, rows)
        start, stop = rows * rank // world_size, rows * (rank + 1) // world_size
        return Sharded(tensor[start:stop], start, rows)

    return _by_name(parts, share)


def wholes(parts: Mapping[str, Stateful]) -> dict[str, Sharded]:
    """All rows that a rank needs to resume, by "part.tensor": new tensors on the host, or rows of live tensors."""
    return _by_name(parts, lambda tensor: Sharded(torch.empty(tensor.shape, dtype=tensor.dtype), 0, tensor.size(0)))


def _by_name(parts: Mapping[str, Stateful], rows_of: Callable[[Tensor], Sharded]) -> dict[str, Sharded]:
    found: dict[str, Sharded] = {}
    for part, stateful in parts.items():
        state = stateful.state()
        found |= {f"{part}.{name}": rows_of(tensor) for name, tensor in state.same.items()}
        found |= {f"{part}.{name}": shard for name, shard in state.sharded.items()}
    return found


class Staging:
    """Reusable host memory for the copies: allocating new pages takes as long as copying."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def copy(self, live: Mapping[str, Sharded]) -> dict[str, Sharded]:
        """Copies of the current pieces."""
        copies = {}
        for name, piece in live.items():
            rows, buffer = piece.rows, self._buffers.get(name)
            if buffer is None or buffer.shape != rows.shape or buffer.dtype != rows.dtype:
                buffer = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=rows.is_cuda)
                self._buffers[name] = buffer
            copies[name] = piece._replace(rows=buffer.copy_(rows.detach(), non_blocking=True))
        if any(piece.rows.is_cuda for piece in live.values()):
            torch.cuda.synchronize()
        return copies
