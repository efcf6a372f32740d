"""The training's output: every step and score in the metrics, and one line per epoch on rank 0."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.spec import Batches, LoopTrain
    from clusterctl.task.task import Task
    from clusterctl.training.objective import Objective, Score


class Fold(NamedTuple):
    """The number of a training in a cross-validation, counted from 1."""

    number: int
    of: int


class TrainingLog:
    """Counts the steps of all epochs and folds, and records them."""

    def __init__(
        self,
        task: Task,
        train: LoopTrain,
        steps: int,
        objective: Objective[Any],
        fold: Fold | None,
        newest: dict[str, float],
    ) -> None:
        """`newest` is kept up to date with the last value of each score."""
        self._task, self._epochs, self._steps, self._unit = task, train.epochs, steps, objective.unit
        number, of = fold or (1, 1)
        self._newest = newest
        self._first_step = (number - 1) * train.epochs * steps
        self.steps_done = self._first_step  # over all epochs and folds
        self._labels = {"fold": number, "folds": of} if fold else {}
        self._counts = {**self._labels, "steps": of * train.epochs * steps, "epochs": train.epochs}
        self._counts["classes"] = objective.classes
        self._began = self._evaluation_began = time.monotonic()

    def resume(self, epoch: int, steps: int) -> None:
        """Continue in `epoch`, of which `steps` are done, and record the newest values again."""
        self.steps_done = self._first_step + (epoch - 1) * self._steps + steps
        self._counts["epoch"] = epoch
        self._task.metrics.write(step=self.steps_done, **self._counts, **self._newest)

    def batches(self, batches: Batches) -> None:
        """Print the batch sizes, and any warning about them, on rank 0."""
        if self._task.place.rank != 0:
            return
        print(batches, flush=True)
        if batches.too_large:
            print(f"warning: {batches.too_large}\nhint: {batches.remedy}", file=sys.stderr, flush=True)

    def epoch(self, epoch: int) -> None:
        """Start an epoch."""
        self._began = time.monotonic()
        self._counts["epoch"] = epoch
        self._task.events.stage(Stage.TRAINING, **self._labels, epoch=epoch)

    def step(self, loss: float, seconds: dict[str, float]) -> None:
        """Record a completed step; `seconds` is the clock's lap."""
        self.steps_done += 1
        self._task.events.heart.beat(self.steps_done)
        self._task.metrics.write(step=self.steps_done, **self._counts, loss=loss, **seconds)

    def evaluating(self) -> None:
        self._evaluation_began = time.monotonic()
        self._task.events.stage(Stage.EVALUATING, **self._labels, epoch=self._counts["epoch"])

    def scores(self, scores: Mapping[str, Score]) -> None:
        """Record the scores of an evaluation, except those of empty splits."""
        named: dict[str, float] = {
            f"{split}_{score.name.lower()}": score.share for split, score in scores.items() if score.total
        }
        if "test" in scores:
            named[f"test_{self._unit}"] = scores["test"].total
        self._newest.update(named)
        seconds = round(time.monotonic() - self._evaluation_began, 6)
        self._task.metrics.write(step=self.steps_done, **self._counts, **named, evaluation_seconds=seconds)

    def print_line(self, what: str, scores: Mapping[str, Score]) -> None:
        """Print one line on rank 0, with the seconds since the start of the epoch."""
        if self._task.place.rank == 0:
            fold = f"fold {self._labels['fold']}/{self._labels['folds']}  " if self._labels else ""
            shown = "".join(f"  {split} {score.name} {score.share:.4f}" for split, score in scores.items())
            print(f"{fold}{what}{shown}  {time.monotonic() - self._began:.2f} s", flush=True)
