"""The progress of a training on an asynchronous device: a step's loss is read once the next step is queued.

On a GPU the host only queues work. If it waited for each loss, the queue would run empty after every step.
`TrainingLog` is the training's output: metrics, and a line per epoch.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.engine.training.flat import NOBODY_STOPS, Stops
from clusterctl.shared.record.metrics import number, score_name
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from clusterctl.engine.task.step_clock import Lap
    from clusterctl.engine.task.task import Task
    from clusterctl.engine.training.checkpoint import Position
    from clusterctl.engine.training.epoch_plan import Batch
    from clusterctl.engine.training.flat import LossReading
    from clusterctl.engine.training.objective import Objective, Score
    from clusterctl.shared.spec import Batches, LoopTrain


STEPS_BEHIND = {"cpu": 0, "cuda": 1}  # steps queued after the one being read; on a CPU a step is done when it returns


class QueuedStep(NamedTuple):
    """A queued step."""

    reading: LossReading
    lap: Lap


class Progress:
    """The `position` after the last step that was read, in an epoch of `seeds`. All ranks read at the same step."""

    def __init__(self, log: TrainingLog, position: Position, seeds: int, device: torch.device) -> None:
        self.position = position
        self._log, self._seeds, self._behind = log, seeds, STEPS_BEHIND[device.type]
        self._queued: deque[tuple[Batch, QueuedStep]] = deque()

    def add(self, batch: Batch, step: QueuedStep) -> Stops:
        """Add a queued step and read the previous one; if that one requests a stop, read the new one too.

        So whenever a stop is set, the position matches the parameters.
        """
        self._queued.append((batch, step))
        stops = self._read(down_to=self._behind)
        return self._read(down_to=0, so_far=stops) if any(stops) else stops

    def catch_up(self) -> Stops:
        """Read all queued steps."""
        return self._read(down_to=0)

    def _read(self, down_to: int, so_far: Stops = NOBODY_STOPS) -> Stops:
        while len(self._queued) > down_to:
            batch, step = self._queued.popleft()
            loss, stops = step.reading.read()
            self._log.step(loss, step.lap.read())
            so_far = Stops(*(one or other for one, other in zip(so_far, stops, strict=True)))
            self.position = self.position._replace(
                seeds=self.position.seeds + batch.total,
                step=self._log.steps_done,
                loss=self.position.loss + loss * batch.total / self._seeds,
            )
        return so_far


# The training's output: every step and score in the metrics, and one line per epoch on rank 0.


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
        if objective.classes:
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
        self._task.events.state(State.TRAINING, **self._labels, epoch=epoch)

    def step(self, loss: float, seconds: dict[str, float]) -> None:
        """Record a completed step; `seconds` is the clock's lap."""
        self.steps_done += 1
        self._task.events.heart.beat(self.steps_done)
        self._task.metrics.write(step=self.steps_done, **self._counts, loss=loss, **seconds)

    def evaluating(self) -> None:
        self._evaluation_began = time.monotonic()
        self._task.events.state(State.EVALUATING, **self._labels, epoch=self._counts["epoch"])

    def scores(self, scores: Mapping[str, Score]) -> None:
        """Record the scores of an evaluation, except those of empty splits."""
        named: dict[str, float] = {
            score_name(split, score.name, lower_is_better=score.lower_is_better): score.value
            for split, score in scores.items()
            if score.total
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
            shown = "".join(f"  {split} {score.name} {number(score.value)}" for split, score in scores.items())
            print(f"{fold}{what}{shown}  {time.monotonic() - self._began:.2f} s", flush=True)
