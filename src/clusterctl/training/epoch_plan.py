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
    seeds: Tensor  # int64 [batch size]
    weights: Tensor  # [batch size]: 1 for a seed, 0 for padding
    total: int  # seeds of all ranks in this step, without padding
    everyone: Tensor  # int64 [total], those seeds


@dataclass(frozen=True)
class EpochPlan:
    """All ranks shuffle alike; of step `s`, rank `r` takes `batch_size` seeds from `(s * world + r) * batch_size` on.

    The last step is padded with seeds of weight zero, so every rank makes the same steps, also where there are fewer
    seeds than ranks.
    """

    seeds: Tensor
    batch_size: int
    seed: int
    rank: int
    world_size: int

    @property
    def steps(self) -> int:
        return -(-self.seeds.numel() // self._global_size)

    def batches(self, epoch: int, done: int = 0) -> Iterator[Batch]:
        """The batches of an epoch without its first `done` seeds, on which all ranks together have trained already.

        That may have been another number of ranks: steps are numbered so that the last keeps its usual number.
        """
        generator = torch.Generator().manual_seed(stream(Purpose.EPOCH_PLAN, self.seed, epoch))
        order = torch.randperm(self.seeds.numel(), generator=generator).to(self.seeds.device)
        first_step = self.steps_after(done)
        for step in range(first_step, self.steps):
            start = done + (step - first_step) * self._global_size
            total = min(self._global_size, order.numel() - start)
            first = start + self.rank * self.batch_size
            positions = torch.arange(first, first + self.batch_size, device=order.device)
            picked = order[positions % order.numel()]
            everyone = self.seeds[order[start : start + total]]
            yield Batch(epoch, step, self.seeds[picked], positions < start + total, total, everyone)

    def steps_after(self, done: int) -> int:
        """The number of the step that begins with seed `done` of an epoch."""
        return self.steps + (done - self.seeds.numel()) // self._global_size

    @property
    def _global_size(self) -> int:
        return self.batch_size * self.world_size
