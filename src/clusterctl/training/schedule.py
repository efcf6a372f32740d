"""How far a step goes: the learning rate over the steps, and a bound on the gradients."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import distributed as dist

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def rate(schedule: str, warmup: float, step: int, steps: int) -> float:
    """The share of the learning rate at `step`, from 0 on, of `steps`.

    It climbs in a line to 1 over the first share `warmup` of the steps; then it stays ("constant"), or falls along half
    a cosine ("cosine") that would reach 0 one step after the last.
    """
    rising = int(warmup * steps + 0.5)
    if step < rising:
        return (step + 1) / rising
    if schedule == "constant":
        return 1.0
    first = max(0, rising - 1)  # the step at 1
    return (1 + math.cos(math.pi * (step - first) / (steps - first))) / 2


def clip_norm(gradients: Tensor, bound: float, sharded: Sequence[Tensor] = ()) -> None:
    """Scale the gradients, all parameters' together, to a Euclidean norm of at most `bound`.

    Of `sharded` gradients every rank has its own rows: with any, this is a collective.
    """
    square = gradients.square().sum()
    if sharded:
        own = torch.stack([rows.square().sum() for rows in sharded]).sum()
        dist.all_reduce(own)
        square = square + own
    factor = (bound / (square.sqrt() + 1e-6)).clamp(max=1.0)
    for part in (gradients, *sharded):
        part.mul_(factor)
