"""The progress of a training on an asynchronous device: a step's loss is read once the next step is queued.

On a GPU the host only queues work. If it waited for each loss, the queue would run empty after every step.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.training.flat import NOBODY_STOPS, Stops

if TYPE_CHECKING:
    import torch

    from clusterctl.task.step_clock import Lap
    from clusterctl.training.checkpoint import Position
    from clusterctl.training.epoch_plan import Batch
    from clusterctl.training.flat import LossReading
    from clusterctl.training.training_log import TrainingLog

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
