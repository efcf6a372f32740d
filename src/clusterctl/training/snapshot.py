"""A training's state at one moment, in this rank's memory: what is written while the training goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clusterctl.training.state import Sharded, Stateful

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHARED_OUT = 1 << 14  # elements; a smaller tensor is written by rank 0 alone


def pieces(parts: Mapping[str, Stateful], rank: int, world_size: int) -> dict[str, Sharded]:
    """The rows that `rank` writes, by "part.tensor": views of the living tensors."""
    found = {}
    for part, stateful in parts.items():
        state = stateful.state()
        for name, tensor in state.same.items():
            found[f"{part}.{name}"] = _share(tensor, rank, world_size)
        for name, shard in state.sharded.items():
            found[f"{part}.{name}"] = shard
    return found


def wholes(parts: Mapping[str, Stateful]) -> dict[str, Sharded]:
    """All rows that a rank needs to go on, by "part.tensor": fresh tensors on the host, or the living ones' rows."""
    found = {}
    for part, stateful in parts.items():
        state = stateful.state()
        for name, tensor in state.same.items():
            found[f"{part}.{name}"] = Sharded(torch.empty(tensor.shape, dtype=tensor.dtype), 0, tensor.size(0))
        for name, shard in state.sharded.items():
            found[f"{part}.{name}"] = shard
    return found


class Staging:
    """Host memory for the copies, used again for each: fresh pages cost as much as the copying."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def copy(self, living: Mapping[str, Sharded]) -> dict[str, Sharded]:
        """Copies of the pieces, as they are now."""
        copies = {name: piece._replace(rows=self._copied(name, piece.rows)) for name, piece in living.items()}
        if any(piece.rows.is_cuda for piece in living.values()):
            torch.cuda.synchronize()
        return copies

    def _copied(self, name: str, rows: Tensor) -> Tensor:
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape != rows.shape or buffer.dtype != rows.dtype:
            buffer = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=rows.is_cuda)
            self._buffers[name] = buffer
        return buffer.copy_(rows.detach(), non_blocking=True)


def _share(tensor: Tensor, rank: int, world_size: int) -> Sharded:
    rows = tensor.size(0)
    if tensor.numel() < _SHARED_OUT:
        return Sharded(tensor if rank == 0 else tensor[:0], 0, rows)
    start, stop = rows * rank // world_size, rows * (rank + 1) // world_size
    return Sharded(tensor[start:stop], start, rows)
