"""Copies from the host to a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import Tensor


def moved(tensors: Iterable[Tensor], device: torch.device) -> list[Tensor]:
    """These tensors on `device`. A GPU copies them from pinned memory after its queued work; the host does not wait."""
    if device.type == "cpu":
        return list(tensors)
    return [tensor.pin_memory().to(device, non_blocking=True) for tensor in tensors]
