"""The area under the ROC curve, exact over all ranks: a count of pairs, not a mean of the ranks' own areas."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist


class Auc(NamedTuple):
    """How often a positive example scores above a negative one; ties count half."""

    half_wins: int  # pairs of a positive and a negative: 2 where the positive is above, 1 for a tie
    positives: int
    negatives: int

    @property
    def name(self) -> str:
        return "AUC"

    @property
    def share(self) -> float:
        pairs = self.positives * self.negatives
        return self.half_wins / (2 * pairs) if pairs else 0.0

    @property
    def total(self) -> int:
        return self.positives


def auc(positive: Tensor, negative: Tensor) -> Auc:
    """Of all ranks' scores together; each rank gives its own. A collective.

    Every rank gets the negatives of all and counts for its own positives: with n scores, O(n log n) and whole numbers.
    """
    below, positive = _everyones(negative).sort().values, positive.contiguous()
    wins = torch.searchsorted(below, positive).sum() + torch.searchsorted(below, positive, right=True).sum()
    counts = torch.stack([wins, wins.new_tensor(positive.numel())])
    dist.all_reduce(counts)
    half_wins, positives = counts.tolist()
    return Auc(half_wins, positives, below.numel())


def _everyones(scores: Tensor) -> Tensor:
    """The scores of all ranks, which may have different numbers of them."""
    world = dist.get_world_size()
    counts = torch.zeros(world, dtype=torch.int64, device=scores.device)
    counts[dist.get_rank()] = scores.numel()
    dist.all_reduce(counts)
    longest = int(counts.max())
    padded = scores.new_zeros(longest)
    padded[: scores.numel()] = scores
    table = scores.new_empty(world, longest)
    dist.all_gather(list(table), padded)
    return torch.cat([row[:count] for row, count in zip(table, counts.tolist(), strict=True)])
