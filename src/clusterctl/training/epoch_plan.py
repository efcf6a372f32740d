"""Which seeds each rank trains on, step by step: the same global batches for any number of ranks, nothing dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clusterctl.graph.hashing import Purpose, stream

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class Batch:
    """One rank's share of one step."""

    epoch: int
    step: int  # within the epoch
    seeds: Tensor  # int64 [seeds per rank], as many on every rank and in every step
    weights: Tensor  # [seeds per rank]: 1 for a seed, 0 for padding
    total: int  # seeds of all ranks in this step, without padding
    everyone: Tensor  # int64 [total], those seeds


@dataclass(frozen=True)
class EpochPlan:
    """All ranks shuffle alike, and step `s` takes the seeds from `s * global_size` on, whatever the number of ranks.

    Each rank gets an equal share of them, to one seed; where shares differ, where the last step has fewer seeds, and
    where there are fewer seeds than ranks, seeds of weight zero fill it up. So every rank makes the same steps.
    """

    seeds: Tensor
    global_size: int  # seeds of all ranks together; more than there are count as all
    seed: int
    rank: int
    world_size: int

    @property
    def steps(self) -> int:
        return -(-self.seeds.numel() // self._size)

    def batches(self, epoch: int, done: int = 0) -> Iterator[Batch]:
        """The batches of an epoch without its first `done` seeds, on which all ranks together have trained already.

        That may have been another number of ranks: steps are numbered so that the last keeps its usual number.
        """
        generator = torch.Generator().manual_seed(stream(Purpose.EPOCH_PLAN, self.seed, epoch))
        order = torch.randperm(self.seeds.numel(), generator=generator).to(self.seeds.device)
        first, end = (self._size * rank // self.world_size for rank in (self.rank, self.rank + 1))
        places = torch.arange(first, first + -(-self._size // self.world_size), device=order.device)
        first_step = self.steps_after(done)
        for step in range(first_step, self.steps):
            start = done + (step - first_step) * self._size
            total = min(self._size, order.numel() - start)
            picked = order[(start + places) % order.numel()]
            everyone = self.seeds[order[start : start + total]]
            yield Batch(epoch, step, self.seeds[picked], places < min(end, total), total, everyone)

    def steps_after(self, done: int) -> int:
        """The number of the step that begins with seed `done` of an epoch."""
        return self.steps + (done - self.seeds.numel()) // self._size

    @property
    def _size(self) -> int:
        return max(1, min(self.global_size, self.seeds.numel()))
