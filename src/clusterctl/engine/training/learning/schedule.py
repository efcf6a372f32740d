"""The learning rate over a training, as a factor of `train.lr`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from clusterctl.engine.training.objective import merit_of
from clusterctl.engine.training.state import PartState
from clusterctl.shared.errors import Cause, TaskError

if TYPE_CHECKING:
    from clusterctl.engine.training.objective import Score
    from clusterctl.shared.spec import LoopTrain


class Schedule:
    """The factor at each step of epochs of `steps` steps. With "plateau", `offer` lowers it."""

    def __init__(self, train: LoopTrain, steps: int) -> None:
        self._train, self._steps = train, steps
        self._best, self._waited, self._changes = -math.inf, 0, 0
        self.waits_for_scores = train.schedule == "plateau"

    def factor(self, epoch: int, step: int) -> float:
        """The factor at `step`, counted from 0, of `epoch`, counted from 1."""
        train = self._train
        place = (epoch - 1) * self._steps + step
        factor = lr_scale(train.schedule, train.warmup, place, train.epochs * self._steps)
        changes = (epoch - 1) // train.schedule_every if train.schedule == "step" else self._changes
        return factor * train.schedule_factor**changes

    def offer(self, score: Score) -> None:
        """Record a validation score. Raises TaskError if there is none."""
        if score.total == 0:
            message = 'the validation split is empty, but train.schedule = "plateau" needs it'
            raise TaskError(message, 'set train.schedule = "step"', Cause.DATA)
        if merit_of(score) > self._best:
            self._best, self._waited = merit_of(score), 0
            return
        self._waited += 1
        if self._waited == self._train.schedule_every:
            self._waited, self._changes = 0, self._changes + 1

    def state(self) -> PartState:
        return PartState({"noted": torch.tensor([self._best, self._waited, self._changes], dtype=torch.float64)})

    def load(self, state: PartState) -> None:
        self._best, waited, changes = state.same["noted"].tolist()
        self._waited, self._changes = int(waited), int(changes)


def lr_scale(schedule: str, warmup: float, step: int, steps: int) -> float:
    """The factor of the learning rate at `step`, counted from 0, of `steps`.

    It rises linearly to 1 over the fraction `warmup` of the steps. Then it stays constant, or falls along half a cosine
    ("cosine") that would reach 0 one step after the last.
    """
    rising = int(warmup * steps + 0.5)
    if step < rising:
        return (step + 1) / rising
    if schedule != "cosine":
        return 1.0
    first = max(0, rising - 1)  # the step with scale 1
    return (1 + math.cos(math.pi * (step - first) / (steps - first))) / 2
