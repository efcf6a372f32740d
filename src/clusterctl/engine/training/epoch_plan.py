"""Assigns seeds to ranks, step by step: the same global batches for any number of ranks, without dropping seeds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import moved
from clusterctl.engine.graph.hashing import Purpose, stream

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Batch:
    """One rank's share of one step."""

    epoch: int
    step: int  # within the epoch
    seeds: Tensor  # int64 [seeds per rank], the same number on every rank and in every step
    weights: Tensor  # [seeds per rank]: 1 for a seed, 0 for padding
    total: int  # seeds of all ranks in this step, without padding
    everyone: Tensor  # int64 [total], the seeds of all ranks
    part: int = 0  # of the step, if it is computed in parts
    is_last: bool = True  # part of the step

    def without_padding(self) -> Batch:
        """Without seeds of weight zero, which a BatchNorm would see, unless this rank has no others."""
        real = self.weights > 0
        if real.all() or not real.any():
            return self
        return replace(self, seeds=self.seeds[real], weights=self.weights[real])

    def parts(self, most: int) -> Iterator[Batch]:
        """This rank's share in up to `most` parts, as many on every rank; none is empty."""
        count = max(1, min(most, self.seeds.numel()))
        shares = zip(self.seeds.tensor_split(count), self.weights.tensor_split(count), strict=True)
        for number, (seeds, weights) in enumerate(shares):
            yield replace(self, seeds=seeds, weights=weights, part=number, is_last=number == count - 1)


@dataclass(frozen=True)
class EpochPlan:
    """All ranks shuffle identically, and step `s` takes the seeds from `s * global_size` on for any number of ranks.

    The ranks' shares differ by at most one seed. Seeds of weight zero pad unequal shares, a smaller last step, and
    batches with fewer seeds than ranks. So every rank makes the same number of steps.
    """

    seeds: Tensor
    global_size: int  # seeds of all ranks together, capped at the number of seeds
    seed: int
    rank: int
    world_size: int

    @property
    def steps(self) -> int:
        return -(-self.seeds.numel() // self._size)

    def batches(self, epoch: int, done: int = 0) -> Iterator[Batch]:
        """The batches of an epoch after its first `done` seeds, which all ranks together have already trained on.

        They may have been trained on by a different number of ranks: steps are numbered back from the last one.
        """
        # On the CPU, since a GPU's generator draws other numbers.
        generator = torch.Generator().manual_seed(stream(Purpose.EPOCH_PLAN, self.seed, epoch))
        (order,) = moved([torch.randperm(self.seeds.numel(), generator=generator)], self.seeds.device)
        shuffled = self.seeds[order]
        first, end = (self._size * rank // self.world_size for rank in (self.rank, self.rank + 1))
        places = torch.arange(first, first + -(-self._size // self.world_size), device=order.device)
        first_step = self.steps_after(done)
        for step in range(first_step, self.steps):
            start = done + (step - first_step) * self._size
            total = min(self._size, shuffled.numel() - start)
            own = shuffled[start + first : start + first + places.numel()]
            if own.numel() < places.numel():  # padding reaches beyond the end
                own = shuffled[(start + places) % shuffled.numel()]
            yield Batch(epoch, step, own, places < min(end, total), total, shuffled[start : start + total])

    def steps_after(self, done: int) -> int:
        """The number of the step that begins with seed `done` of an epoch."""
        return self.steps + (done - self.seeds.numel()) // self._size

    @property
    def _size(self) -> int:
        return max(1, min(self.global_size, self.seeds.numel()))
