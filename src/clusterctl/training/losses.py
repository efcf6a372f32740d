"""One rank's part of a step's mean loss: the parts of all ranks add up to the mean over the seeds of all ranks.

`weights` [seeds] is 0 for padding, and `total` the number of seeds of all ranks, as in `Batch`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def class_loss(scores: Tensor, classes: Tensor, weights: Tensor, total: int) -> Tensor:
    """The cross-entropy of scores [seeds, classes] and the right classes, int64 [seeds]."""
    losses = F.cross_entropy(scores, classes, reduction="none")
    return (losses * weights).sum() / total


def link_loss(scores: Tensor, weights: Tensor, total: int) -> Tensor:
    """The binary cross-entropy of scores [2 * seeds]: those of the edges, then those of as many non-edges."""
    count = weights.numel()
    wanted = torch.cat([scores.new_ones(count), scores.new_zeros(count)])
    losses = F.binary_cross_entropy_with_logits(scores, wanted, reduction="none")
    return (losses * weights.repeat(2)).sum() / (2 * total)
