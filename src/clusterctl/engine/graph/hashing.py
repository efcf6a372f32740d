"""Randomness that depends on what is drawn, not on who draws it: a hash of (purpose, seed, epoch, step, ..., node).

Neighbours and dropout are the same for any number of ranks or threads, on CPU and GPU, and after a resume. The hash is
the output function of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014)
in the wrapping int64 arithmetic that torch offers on every device.

The key of an epoch of PyG's loaders is drawn from torch's generator (`EpochKey`): their samples do not depend on the
worker that draws them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import cast

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import moved


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits


GOLDEN = _signed(0x9E3779B97F4A7C15)
FIRST = _signed(0xBF58476D1CE4E5B9)
SECOND = _signed(0x94D049BB133111EB)
_MASK = (1 << 64) - 1
_MOST_KEYS = 64  # per step: a few for each layer


class Purpose(IntEnum):
    """Separates streams that share their other numbers."""

    EPOCH_PLAN = 1
    SAMPLING = 2
    DROPOUT = 3
    SPLIT = 4
    NEGATIVES = 5
    ROWS = 6
    WINDOW = 7
    SHUFFLE = 8
    ORDER = 9
    CLUSTERS = 10


class ReplayedNumber(int):
    """A placeholder for a number that changes with every replay; `keys` knows the current value."""

    keys: ReplayedKeys


class ReplayedKeys:
    """The keys of work that is captured once and replayed: device memory that is refilled before each replay.

    Pass `epoch` and `step` to `stream` instead of the actual numbers.
    """

    def __init__(self, device: torch.device) -> None:
        self.epoch, self.step = ReplayedNumber(-1), ReplayedNumber(-2)  # unlike any real number, and each other
        self.epoch.keys = self.step.keys = self
        self._current = {int(self.epoch): 0, int(self.step): 0}
        self._streams: dict[tuple[Purpose, tuple[int, ...]], int] = {}
        self._places = torch.zeros(_MOST_KEYS, dtype=torch.int64, device=device)

    def fill(self, epoch: int, step: int) -> None:
        """Set all keys to those of this step; on a GPU the copy is queued."""
        self._current = {int(self.epoch): epoch, int(self.step): step}
        keys = torch.tensor([self._key(*asked) for asked in self._streams], dtype=torch.int64)
        (keys,) = moved([keys], self._places.device)
        self._places[: keys.numel()].copy_(keys)

    def place(self, purpose: Purpose, numbers: tuple[int, ...]) -> Tensor:
        """The key of a stream, a 0-dimensional int64."""
        if (purpose, numbers) not in self._streams:
            self._streams[purpose, numbers] = len(self._streams)
            self._places[len(self._streams) - 1] = self._key(purpose, numbers)
        return self._places[self._streams[purpose, numbers]]

    def _key(self, purpose: Purpose, numbers: tuple[int, ...]) -> int:
        return stream(
            purpose, *(self._current[number] if isinstance(number, ReplayedNumber) else number for number in numbers)
        )


def stream(purpose: Purpose, *numbers: int) -> int:
    """The key of a stream: a hash of all the numbers, order included.

    If one of them is a `ReplayedNumber`, the key is a tensor, which `draws` accepts too.
    """
    for number in numbers:
        if isinstance(number, ReplayedNumber):
            return cast("int", number.keys.place(purpose, numbers))
    key = int(purpose)
    for number in numbers:
        key = _mix_number(key + number)
    return _signed(_mix_number(key))


def draws(key: int | Tensor, counters: Tensor) -> Tensor:
    """64 random bits for each int64 counter, as int64 of the same shape."""
    added = key + GOLDEN if isinstance(key, Tensor) else _signed(key + GOLDEN & _MASK)
    return _mixed((counters * GOLDEN).add_(added))


def grid(keys: Tensor, counters: Tensor) -> Tensor:
    """`draws(0, keys[:, None] + counters)`, with two fewer passes over [keys, counters]."""
    return _mixed((keys * GOLDEN)[:, None] + (counters * GOLDEN).add_(GOLDEN))


def _mixed(mixed: Tensor) -> Tensor:
    """SplitMix64 of each value, in place; its constant has already been added."""
    for shift, factor in ((30, FIRST), (27, SECOND)):
        mixed.bitwise_xor_(shift_right(mixed, shift)).mul_(factor)
    return mixed.bitwise_xor_(shift_right(mixed, 31))


def below(bits: Tensor, bounds: Tensor | int) -> Tensor:
    """A whole number in [0, bound) from the upper 32 of each 64 random bits; bounds are at most 2**31.

    Integers only: a product of floats can round up to the bound itself. The bias is below bound / 2**32.
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


_HIGHEST = torch.iinfo(torch.int64).max


class EpochKey:
    """A loader begins an epoch in its own process, and its workers share the key."""

    def __init__(self) -> None:
        self._shared: Tensor | None = None

    def begin(self) -> None:
        """Draw the key of all samples up to the next call."""
        if self._shared is None:
            self._shared = torch.zeros(1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._shared.random_(_HIGHEST)

    def value(self) -> int:
        """The epoch's key; a new one each time for a sampler that is used without a loader of ours."""
        return int(torch.randint(_HIGHEST, ()) if self._shared is None else self._shared)


def digest(examples: Tensor) -> int:
    """A number for a set of int64 examples, the same in any order."""
    return int(draws(0, examples).sum())
