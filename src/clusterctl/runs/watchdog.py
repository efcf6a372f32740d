"""When a rank is stuck, and what happens then: the decisions. `node_watch` watches, `answers` is each rank's part.

A program that logs no steps is watched by what it does (`idleness`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.runs.heartbeats import BEAT_SECONDS, ENDED, Beat
from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
    from clusterctl.spec import Watchdog


EXIT_HUNG = 70
IDLE, IDLE_GPUS = "idle", "idle-gpus"  # how an alarm came about, besides those of `judgement.suspects`


def action(settings: Watchdog, *, logs_steps: bool, how: str = "") -> str:
    """What to do with a run that is stuck, or idle as `how` says: "restart", "fail" or "report"."""
    return settings.action or ("fail" if how == IDLE_GPUS else "restart" if logs_steps else "report")


def patience(settings: Watchdog, beat: Beat) -> float:
    """For how many seconds a rank may make no progress in the phase of `beat`.

    Infinite for one that has left, and for a program that logs no steps.
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
    """How long a rank has made no progress, by the clock of the process that watches it, as clocks of nodes differ.

    Seconds in which the watcher itself was away (the machine suspended, all ranks stopped and woken) do not count.
    """

    beat: Beat | None = None
    seconds: float = 0.0
    every: float = BEAT_SECONDS  # seconds between two looks
    _looked: float | None = None

    def look(self, beat: Beat | None, now: float) -> float:
        """Note the heartbeat at `now`, on any steady clock; returns the seconds without progress."""
        away = 0.0 if self._looked is None else min(now - self._looked, 3 * self.every)
        self._looked = now
        if beat is None:  # not begun, or torn at this moment
            return self.seconds
        moved = self.beat is None or _progress(beat) != _progress(self.beat)
        self.beat = beat
        self.seconds = 0.0 if moved else self.seconds + away
        return self.seconds


def _progress(beat: Beat) -> tuple[str, int, int]:
    return beat.phase, beat.step, beat.pid
