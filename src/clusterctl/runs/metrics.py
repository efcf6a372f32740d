"""The numbers of a run, one JSON object a line in `attempts/<n>/metrics.jsonl`; `vocabulary` has their meaning."""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.runs.files import Lines
from clusterctl.runs.heartbeats import Heart
from clusterctl.runs.layout import Attempt, RunDir
from clusterctl.runs.place import Place
from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
    from clusterctl.runs.vocabulary import Number


class MetricsWriter:
    """Appends to an attempt's metrics; silent without an attempt and on every rank but 0."""

    def __init__(self, attempt: Attempt | None, rank: int) -> None:
        self._lines = Lines(attempt.metrics) if attempt and rank == 0 else None

    def write(self, **values: Number) -> None:
        if self._lines:
            self._lines.append({"time": time.time(), **values})


def current_attempt() -> Attempt | None:
    """The attempt that this process belongs to, or None outside a run."""
    folder, number = os.environ.get("CLUSTERCTL_RUN_DIR"), os.environ.get("CLUSTERCTL_ATTEMPT", "")
    return RunDir(Path(folder)).attempt(int(number)) if folder and number.isdigit() else None


@cache
def _writer() -> MetricsWriter:
    return MetricsWriter(current_attempt(), Place.from_environment().rank)


@cache
def _heart() -> Heart:
    """This program's pulse: from its first step on, it is what beats for its rank."""
    heart, attempt = Heart(), current_attempt()
    heart.enter(Stage.TRAINING)
    if attempt is not None:
        from clusterctl.runs.answers import beating  # here: a program that logs no step needs none of it

        beating(heart, attempt, Place.from_environment())
    return heart


def log(**values: Number) -> None:
    """Record numbers of the running program: `log(step=3, loss=0.7)`; `clusterctl status` shows them.

    For `workload = "command"`. Call it on every rank: rank 0's values are kept, and each rank's `step` is its
    heartbeat, by which the watchdog and `clusterctl why` know a rank that stands still. Outside a run nothing happens,
    so a program can call this wherever it runs.
    """
    _writer().write(**values)
    if type(step := values.get("step")) is int:
        _heart().beat(step)


def phase(name: str) -> None:
    """Tell what the program does now, where that is no training step: "loading", "evaluating", "checkpointing".

    The watchdog waits longer for those; say "training" when the steps go on.
    """
    _heart().enter(Stage(name).value)
