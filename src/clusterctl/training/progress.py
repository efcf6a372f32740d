"""What a training tells: every step and score in the metrics, every epoch in a line of rank 0."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.spec import LoopTrain
    from clusterctl.task.task import Task
    from clusterctl.training.objective import Objective, Score


class Fold(NamedTuple):
    """Where a training stands among those of a cross-validation; from 1 on."""

    number: int
    of: int


class Progress:
    """Counts the steps of all epochs, and of all folds."""

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
        self._step = self._first_step
        self._labels = {"fold": number, "folds": of} if fold else {}
        self._counts = {**self._labels, "steps": of * train.epochs * steps, "epochs": train.epochs}
        self._counts["classes"] = objective.classes
        self._began = self._evaluation_began = time.monotonic()

    @property
    def steps_done(self) -> int:
        """Steps of all epochs, and of all folds."""
        return self._step

    def resume(self, epoch: int, steps: int, newest: dict[str, float]) -> None:
        """The training goes on in `epoch`, of which `steps` are done; what was last told is told again."""
        self._newest = newest
        self._step = self._first_step + (epoch - 1) * self._steps + steps
        self._counts["epoch"] = epoch
        self._task.metrics.write(step=self._step, **self._counts, **newest)

    def epoch(self, epoch: int) -> None:
        """An epoch begins."""
        self._began = time.monotonic()
        self._counts["epoch"] = epoch
        self._task.events.stage(Stage.TRAINING, **self._labels, epoch=epoch)

    def step(self, loss: float, seconds: dict[str, float]) -> None:
        """A step is done; `seconds` is the clock's lap."""
        self._step += 1
        self._task.events.heart.beat(self._step)
        self._task.metrics.write(step=self._step, **self._counts, loss=loss, **seconds)

    def evaluating(self) -> None:
        self._evaluation_began = time.monotonic()
        self._task.events.stage(Stage.EVALUATING, **self._labels, epoch=self._counts["epoch"])

    def scores(self, scores: Mapping[str, Score]) -> None:
        """An evaluation is done. Splits that hold nothing are left out."""
        named: dict[str, float] = {
            f"{split}_{score.name.lower()}": score.share for split, score in scores.items() if score.total
        }
        if "test" in scores:
            named[f"test_{self._unit}"] = scores["test"].total
        self._newest.update(named)
        seconds = round(time.monotonic() - self._evaluation_began, 6)
        self._task.metrics.write(step=self._step, **self._counts, **named, evaluation_seconds=seconds)

    def tell(self, what: str, scores: Mapping[str, Score]) -> None:
        """One line on rank 0, with the seconds since the epoch began."""
        if self._task.place.rank == 0:
            fold = f"fold {self._labels['fold']}/{self._labels['folds']}  " if self._labels else ""
            told = "".join(f"  {split} {score.name} {score.share:.4f}" for split, score in scores.items())
            print(f"{fold}{what}{told}  {time.monotonic() - self._began:.2f} s", flush=True)
