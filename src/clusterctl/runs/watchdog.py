"""Decides when a rank is stuck and what to do about it. `node_watch` observes; `answers` is each rank's part.

A program that logs no steps is judged by its activity (`idleness`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.runs.heartbeats import BEAT_SECONDS, ENDED, Beat
from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
    from clusterctl.spec import Watchdog


EXIT_HUNG = 70
IDLE, IDLE_GPUS = "idle", "idle-gpus"  # reasons for an alarm besides those of `judgement.suspects`


def action(settings: Watchdog, *, logs_steps: bool, how: str = "") -> str:
    """What to do with a run that is stuck, or idle for the reason `how`: "restart", "fail" or "report"."""
    return settings.action or ("fail" if how == IDLE_GPUS else "restart" if logs_steps else "report")


def patience(settings: Watchdog, beat: Beat) -> float:
    """How many seconds without progress are allowed in the phase of `beat`.

    Infinite for a rank that has exited, and for a program that logs no steps.
    """
    if beat.phase == ENDED or beat.idle is not None:
        return float("inf")
    if beat.phase == Stage.TRAINING:
        slow = beat.slow_seconds
        return settings.starting if slow is None else max(float(settings.floor), settings.factor * slow)
    has_own = beat.phase in (Stage.LOADING, Stage.EVALUATING, Stage.CHECKPOINTING)
    return float(getattr(settings, beat.phase) if has_own else settings.starting)


@dataclass
class Stillness:
    """How long a rank has made no progress, by the clock of the watching process, since clocks of nodes differ.

    Time in which the watcher itself did not run (suspended machine, all ranks stopped and resumed) does not count.
    """

    beat: Beat | None = None
    seconds: float = 0.0
    every: float = BEAT_SECONDS  # seconds between two checks
    _looked: float | None = None

    def look(self, beat: Beat | None, now: float) -> float:
        """Record the heartbeat at `now`, on any monotonic clock; returns the seconds without progress."""
        away = 0.0 if self._looked is None else min(now - self._looked, 3 * self.every)
        self._looked = now
        if beat is None:  # not started yet, or torn at the moment
            return self.seconds
        moved = self.beat is None or _progress(beat) != _progress(self.beat)
        self.beat = beat
        self.seconds = 0.0 if moved else self.seconds + away
        return self.seconds


def _progress(beat: Beat) -> tuple[str, int, int]:
    return beat.phase, beat.step, beat.pid
