"""The numbers of a run, one JSON object a line in `attempts/<n>/metrics.jsonl`; `vocabulary` has their meaning.

Those of a million steps stay below 100 MB, in one attempt or a hundred. Of each kind of record, which is those with the
same names, a run writes the first 65,536, then every second one up to twice as many, then every fourth, and so on: each
doubling of a run adds 32,768 lines. So the newest half of a run always has that many. Which number a record has in the
run follows from its step. The newest record that was left out is written when one of a rarer kind comes, such as an
evaluation's, and when the program ends; so are the first hundred of an attempt, and the first hundred whose values are
not all finite.
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


_WHOLE = 2**16  # records of a kind that are all written
_FIRST = 100  # of an attempt, which are written too: of so few nobody knows how often they come
_MOST_KINDS = 1000  # a program may log under names that it makes up
_LETTING_GO_SECONDS = 0.05


class MetricsWriter:
    """Appends to an attempt's metrics; silent without an attempt and on every rank but 0."""

    def __init__(self, attempt: Attempt | None, rank: int) -> None:
        self._lines = Lines(attempt.metrics) if attempt and rank == 0 else None
        self._kinds: dict[tuple[object, ...], _Kind] = {}
        self._left_out: dict[int, dict[str, Number]] = {}  # the newest record of each kind, if it was

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
        """Write the newest records, as far as they were left out."""
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
    """Records of the same names; whether their values are finite is one of them."""

    count: int = 0  # in this attempt
    first: int = 0  # its step

    def take(self, step: object) -> int:
        """Count one; its number in the run: earlier attempts are taken to have written as often as this one."""
        self.count += 1
        if type(step) is not int:
            return self.count
        if self.count == 1:
            self.first = step
        return max(self.count, step * (self.count - 1) // (step - self.first)) if step > self.first else self.count


def stride(number: int) -> int:
    """Of which number of records of a kind one is written, by how many there were: a power of two."""
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
    """Give torch's threads the interpreter once more before it ends.

    One of gloo's that frees its last work only then is ended by Python, and takes the process with it: "terminate
    called without an active exception" (torch 2.13, github.com/pytorch/pytorch/issues/190489). A thread of ours beside
    it makes that likely.
    """
    if "torch.distributed" in sys.modules:
        time.sleep(_LETTING_GO_SECONDS)


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
