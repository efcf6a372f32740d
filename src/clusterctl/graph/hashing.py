"""Randomness that depends on what is drawn, not on who draws it: a hash of (purpose, seed, epoch, step, ..., node).

The same neighbours and the same dropout come out whatever the number of ranks or threads, on CPU and GPU, and after a
resume. The hash is the output function of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014) in the wrapping int64 arithmetic that torch offers on every device.
"""

from __future__ import annotations

from enum import IntEnum

import torch
from torch import Tensor


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits


GOLDEN = _signed(0x9E3779B97F4A7C15)
FIRST = _signed(0xBF58476D1CE4E5B9)
SECOND = _signed(0x94D049BB133111EB)
_MASK = (1 << 64) - 1
_LEVELS = 1 << 16  # of the share that dropout zeroes
_ROWS = 2048  # at a time on the CPU: the random bits stay in the cache


class Purpose(IntEnum):
    """Keeps streams apart that share their other numbers."""

    EPOCH_PLAN = 1
    SAMPLING = 2
    DROPOUT = 3
    SPLIT = 4
    NEGATIVES = 5
    ROWS = 6
    WINDOW = 7
    SHUFFLE = 8


def stream(purpose: Purpose, *numbers: int) -> int:
    """The key of a stream: a hash of all the numbers, order included."""
    key = int(purpose)
    for number in numbers:
        key = _mix_number(key + number)
    return _signed(_mix_number(key))


def draws(key: int, counters: Tensor) -> Tensor:
    """64 random bits for each int64 counter, as int64 of the same shape."""
    return _mixed((counters * GOLDEN).add_(_signed(key + GOLDEN & _MASK)))


def grid(keys: Tensor, counters: Tensor) -> Tensor:
    """`draws(0, keys[:, None] + counters)`, with two passes over [keys, counters] less."""
    return _mixed((keys * GOLDEN)[:, None] + (counters * GOLDEN).add_(GOLDEN))


def _mixed(mixed: Tensor) -> Tensor:
    """SplitMix64 of each value, to which its constant was added already, in place."""
    for shift, factor in ((30, FIRST), (27, SECOND)):
        mixed.bitwise_xor_(shift_right(mixed, shift)).mul_(factor)
    return mixed.bitwise_xor_(shift_right(mixed, 31))


def below(bits: Tensor, bounds: Tensor) -> Tensor:
    """A whole number in [0, bound) from the upper 32 of each 64 random bits; bounds are at most 2**31.

    Integers alone: a product of floats can round up to the bound itself. The bias is below bound / 2**32.
    """
    return (shift_right(bits, 32) * bounds) >> 32


def _mix_number(value: int) -> int:
    """SplitMix64 of one number, unsigned; many times faster than a tensor's."""
    value = (value + GOLDEN) & _MASK
    for shift, factor in ((30, FIRST), (27, SECOND)):
        value = (value ^ (value >> shift)) * factor & _MASK
    return value ^ (value >> 31)


def shift_right(values: Tensor, shift: int) -> Tensor:
    """The logical shift; torch's own copies the sign bit."""
    return (values >> shift).bitwise_and_((1 << (64 - shift)) - 1)


def keyed_dropout(values: Tensor, nodes: Tensor, share: float, key: int) -> Tensor:
    """`values` [nodes, channels] with a `share` of them zeroed and the others scaled up; `nodes` are their int64 ids.

    One 64-bit hash decides four values, so `share` is rounded to a multiple of 2**-16; the scale is that of the
    rounded share.
    """
    dropped = min(round(share * _LEVELS), _LEVELS - 1)
    if dropped == 0 or not values.numel():
        return values
    words = (values.size(1) + 3) // 4
    keys = draws(key, nodes)
    lanes = torch.arange(words, device=values.device)
    rows = _ROWS if values.device.type == "cpu" else max(1, nodes.numel())
    keep = torch.empty(values.shape, dtype=torch.uint8, device=values.device)  # 4 times faster than bool on a CPU
    for part, mask in zip(torch.split(keys, rows), torch.split(keep, rows), strict=True):
        bits = grid(part, lanes).view(torch.int16)[:, : values.size(1)]
        torch.ge(bits, dropped - _LEVELS // 2, out=mask)
    return values * keep.to(values.dtype).mul_(_LEVELS / (_LEVELS - dropped))
