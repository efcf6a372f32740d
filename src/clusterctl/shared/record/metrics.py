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
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.shared.errors import reason
from clusterctl.shared.record.files import Lines

if TYPE_CHECKING:
    from clusterctl.shared.record.layout import Attempt
    from clusterctl.shared.record.vocabulary import Number


_WHOLE = 2**16  # records of a kind that are written without thinning
_FIRST = 100  # of an attempt, always written: their frequency is not known yet
_MOST_KINDS = 1000  # a program may generate names
_LETTING_GO_SECONDS = 0.05
_MOST_SAID = 20  # lines on stderr
_said: set[str] = set()


class MetricsWriter:
    """Appends to an attempt's metrics; does nothing without an attempt or on ranks other than 0."""

    def __init__(self, attempt: Attempt | None, rank: int) -> None:
        self._lines = Lines(attempt.metrics, attempt.path.parents[1]) if attempt and rank == 0 else None
        self._kinds: dict[tuple[object, ...], _Kind] = {}
        self._left_out: dict[int, dict[str, Number]] = {}  # the newest record of each kind, if it was skipped
        if self._lines:
            atexit.register(self._settle, self._lines)

    def write(self, **values: Number) -> None:
        if not self._lines:
            return
        values = {name: number for name, value in values.items() if (number := as_number(name, value)) is not None}
        finite = not any(isinstance(value, float) and not math.isfinite(value) for value in values.values())
        names = (*values, finite)
        known = names in self._kinds or len(self._kinds) < _MOST_KINDS
        kind, record = self._kinds.setdefault(names if known else (), _Kind()), {"time": time.time(), **values}
        every = stride(kind.take(values.get("step")))
        if kind.count % every and kind.count > _FIRST:
            self._left_out[id(kind)] = record
            return
        self._left_out.pop(id(kind), None)
        if every == 1 and self._left_out:
            self.write_left_out()
        self._lines.append(record)

    @staticmethod
    def _settle(lines: Lines) -> None:
        if not lines.settle():
            say_once("the last metrics are not written: the disk is full")

    def write_left_out(self) -> None:
        """Write the newest record of each kind if it was skipped."""
        left_out, self._left_out = self._left_out, {}
        for record in sorted(left_out.values(), key=lambda record: record["time"]):
            if self._lines:
                self._lines.append(record)


def as_number(name: str, value: Any) -> Number | None:
    """`value` as a number of Python's, from one of NumPy, torch or the like; None, and one line, if it is none."""
    if type(value) in (int, float):
        return value  # type: ignore[no-any-return]
    try:
        found = value.item() if hasattr(value, "item") else value
        return found if type(found) in (int, float) else int(found) if type(found) is bool else float(found)
    except Exception as error:
        say_once(f"{name} is not logged: {type(value).__name__} is not a number: {reason(error)}")
        return None


def say_once(message: str) -> None:
    """A line on stderr for what this program's calls could not do, each once."""
    if message not in _said and len(_said) < _MOST_SAID:
        _said.add(message)
        with suppress(OSError, ValueError):
            sys.stderr.write(f"clusterctl: {message}\n")


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
