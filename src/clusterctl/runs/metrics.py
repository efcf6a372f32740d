"""The metrics of a run, one JSON object per line in `attempts/<n>/metrics.jsonl`; `vocabulary` defines their meaning.

A million steps take less than 100 MB, in one attempt or a hundred. Records with the same names are of one kind. Of each
kind a run writes the first 65,536, then every second one up to twice that number, then every fourth, and so on: each
doubling of the run's length adds 32,768 lines, so the newest half of a run always has that many. A record's number in
the run follows from its step. The newest skipped record is written when one of a rarer kind comes, such as an
evaluation's, and when the program ends. The first hundred records of an attempt, and the first hundred with non-finite
values, are always written.
"""

from __future__ import annotations

import atexit
import math
import os
import sys
import time
from dataclasses import dataclass
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


_WHOLE = 2**16  # records of a kind that are written without thinning
_FIRST = 100  # of an attempt, always written: their frequency is not known yet
_MOST_KINDS = 1000  # a program may generate names
_LETTING_GO_SECONDS = 0.05


class MetricsWriter:
    """Appends to an attempt's metrics; does nothing without an attempt or on ranks other than 0."""

    def __init__(self, attempt: Attempt | None, rank: int) -> None:
        self._lines = Lines(attempt.metrics, attempt.path.parents[1]) if attempt and rank == 0 else None
        self._kinds: dict[tuple[object, ...], _Kind] = {}
        self._left_out: dict[int, dict[str, Number]] = {}  # the newest record of each kind, if it was skipped

    def write(self, **values: Number) -> None:
        if not self._lines:
            return
        kind, record = self._kind(values), {"time": time.time(), **values}
        every = stride(kind.take(values.get("step")))
        if kind.count % every and kind.count > _FIRST:
            self._left_out[id(kind)] = record
            return
        self._left_out.pop(id(kind), None)
        if every == 1 and self._left_out:
            self.write_left_out()
        self._lines.append(record)

    def write_left_out(self) -> None:
        """Write the newest record of each kind if it was skipped."""
        left_out, self._left_out = self._left_out, {}
        for record in sorted(left_out.values(), key=lambda record: record["time"]):
            if self._lines:
                self._lines.append(record)

    def _kind(self, values: dict[str, Number]) -> _Kind:
        finite = not any(isinstance(value, float) and not math.isfinite(value) for value in values.values())
        names = (*values, finite)
        return self._kinds.setdefault(names if names in self._kinds or len(self._kinds) < _MOST_KINDS else (), _Kind())


@dataclass(slots=True)
class _Kind:
    """Records with the same names; finite and non-finite records are of different kinds."""

    count: int = 0  # in this attempt
    first: int = 0  # its step

    def take(self, step: object) -> int:
        """Count one record; returns its number in the run, assuming that earlier attempts logged equally often."""
        self.count += 1
        if type(step) is not int:
            return self.count
        if self.count == 1:
            self.first = step
        return max(self.count, step * (self.count - 1) // (step - self.first)) if step > self.first else self.count


def stride(number: int) -> int:
    """One in how many records of a kind is written after `number` of them: a power of two."""
    return 1 << ((number - 1) // _WHOLE).bit_length()


def current_attempt() -> Attempt | None:
    """The attempt that this process belongs to, or None outside a run."""
    folder, number = os.environ.get("CLUSTERCTL_RUN_DIR"), os.environ.get("CLUSTERCTL_ATTEMPT", "")
    return RunDir(Path(folder)).attempt(int(number)) if folder and number.isdigit() else None


@cache
def _writer() -> MetricsWriter:
    writer = MetricsWriter(current_attempt(), Place.from_environment().rank)
    atexit.register(writer.write_left_out)
    atexit.register(_let_go)
    return writer


def _let_go() -> None:
    """Let torch's threads run once more before the interpreter shuts down.

    A gloo thread that frees its last work during shutdown is killed by Python and takes the process with it: "terminate
    called without an active exception" (torch 2.13, github.com/pytorch/pytorch/issues/190489). An additional thread of
    ours makes that likely.
    """
    if "torch.distributed" in sys.modules:
        time.sleep(_LETTING_GO_SECONDS)


@cache
def _heart() -> Heart:
    """This program's heart: from the first step on, it sends the rank's heartbeats."""
    heart, attempt = Heart(), current_attempt()
    heart.enter(Stage.TRAINING)
    if attempt is not None:
        from clusterctl.runs.answers import beating  # late: not needed by a program that logs no steps

        beating(heart, attempt, Place.from_environment())
    return heart


def log(**values: Number) -> None:
    """Record numbers of the running program: `log(step=3, loss=0.7)`; `clusterctl status` shows them.

    For `workload = "command"`. Call it on every rank: the values of rank 0 are stored, and each rank's `step` is its
    heartbeat, which lets the watchdog and `clusterctl why` find a stuck rank. Outside a run it does nothing, so a
    program can always call it.
    """
    _writer().write(**values)
    if type(step := values.get("step")) is int:
        _heart().beat(step)


def phase(name: str) -> None:
    """Report the program's current phase if it is not training: "loading", "evaluating", "checkpointing".

    The watchdog waits longer in these phases; pass "training" when steps continue.
    """
    _heart().enter(Stage(name).value)
