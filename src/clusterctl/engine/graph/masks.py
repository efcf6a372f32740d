"""Dropout whose masks depend on the rows and on a key, on any device and for any number of ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import uses_loops
from clusterctl.engine.graph.hashing import draws, grid

WORTH_COMPILING = 1 << 16  # values, where other loops are compiled anyhow
_LEVELS = 1 << 16  # resolution of the dropout probability
_ROWS = 2048  # at a time on the CPU: the random bits stay in the cache


def kept_of(p: float) -> tuple[int, float]:
    """The lowest of 16 signed random bits that keeps a value, and the factor of the kept ones; 1 if all are kept."""
    dropped = min(round(p * _LEVELS), _LEVELS - 1)
    return dropped - _LEVELS // 2, _LEVELS / (_LEVELS - dropped)


def keyed_dropout(values: Tensor, nodes: Tensor, p: float, key: int) -> Tensor:
    """`values` [nodes, channels], each zeroed with probability `p` or scaled up; `nodes` are their int64 ids.

    One 64-bit hash decides four values, so `p` is rounded to a multiple of 2**-16, and the scale matches that.
    """
    lowest, scale = kept_of(p)
    if scale == 1 or not values.numel():
        return values
    keys = draws(key, nodes)
    if values.device.type == "cpu" and values.numel() >= WORTH_COMPILING and uses_loops():
        from clusterctl.engine.graph.compiled import dropout_factors  # waits if another thread is importing it

        return values * dropout_factors(keys, values, lowest, scale)
    lanes = torch.arange((values.size(1) + 3) // 4, device=values.device)
    rows = _ROWS if values.device.type == "cpu" else max(1, nodes.numel())
    keep = torch.empty(values.shape, dtype=torch.uint8, device=values.device)  # 4 times faster than bool on a CPU
    for part, mask in zip(torch.split(keys, rows), torch.split(keep, rows), strict=True):
        bits = grid(part, lanes).view(torch.int16)[:, : values.size(1)]
        torch.ge(bits, lowest, out=mask)
    return values * keep.to(values.dtype).mul_(scale)
