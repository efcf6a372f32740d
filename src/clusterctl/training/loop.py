"""Training: epochs of steps, exact evaluation in between, the same numbers for any number of ranks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

from clusterctl.runs.signals import EXIT_TERMINATED
from clusterctl.runs.stages import Stage
from clusterctl.training.adam import Adam
from clusterctl.training.epoch_plan import Batch, EpochPlan
from clusterctl.training.flat import FlatModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from clusterctl.spec import LoopTrain
    from clusterctl.task.task import Task


class Accuracy(NamedTuple):
    correct: int
    total: int

    @property
    def share(self) -> float:
        return self.correct / self.total if self.total else 0.0


class Objective(Protocol):
    """What is trained. Its collectives run on all ranks at the same time."""

    model: nn.Module

    @property
    def seeds(self) -> Tensor:
        """All training seeds, the same on every rank."""

    def loss(self, batch: Batch) -> Tensor:
        """This rank's part of the step's mean loss: a sum over its own seeds divided by the seeds of all ranks."""

    def evaluate(self, splits: Sequence[str]) -> dict[str, Accuracy]:
        """The exact accuracy on each of the splits "val" and "test", over all ranks."""


def fit(objective: Objective, train: LoopTrain, task: Task) -> Accuracy:
    """Train for `train.epochs` epochs and return the accuracy on the test split, which is evaluated once, at the end."""
    plan = EpochPlan(objective.seeds, train.batch_size, train.seed, task.place.rank, task.place.world_size)
    flat = FlatModel(objective.model)
    flat.broadcast()
    optimizer = Adam(flat.values, flat.gradients, train.lr, train.weight_decay)
    warned = False

    for epoch in range(train.epochs):
        began, losses = time.monotonic(), 0.0
        task.events.stage(Stage.TRAINING, epoch=epoch + 1)
        objective.model.train()
        for batch in plan.batches(epoch):
            loss, now_warned, terminated = flat.backward(
                objective.loss(batch), task.stop.warned, task.stop.terminated
            )
            optimizer.step()
            losses += loss * batch.total
            task.metrics.write(
                step=epoch * plan.steps + batch.step + 1,
                steps=train.epochs * plan.steps,
                epoch=epoch + 1,
                epochs=train.epochs,
                loss=loss,
            )
            if terminated:
                raise SystemExit(EXIT_TERMINATED)
            if now_warned and not warned:
                task.events.stage(Stage.TRAINING, epoch=epoch + 1, warned=True)
            warned = now_warned
        line = f"epoch {epoch + 1}/{train.epochs}  loss {losses / objective.seeds.numel():.4f}"
        if epoch + 1 == train.epochs or (train.evaluate_every and (epoch + 1) % train.evaluate_every == 0):
            splits = ("val", "test") if epoch + 1 == train.epochs else ("val",)
            ...
    raise NotImplementedError
