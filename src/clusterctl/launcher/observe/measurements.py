"""The metrics of an attempt, typed, and its pace: the only reader of what `clusterctl.shared.record.metrics` writes."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.launcher.observe.lines import Growing, records_in
from clusterctl.shared.record.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from clusterctl.shared.record.layout import Attempt, RunDir
    from clusterctl.shared.record.metrics import Number


_LARGEST_STEP = 2.0**63  # the difference of two steps must fit a chart's axis


class Measurement(NamedTuple):
    """The numbers of one line by name, including NaN and infinities; `time` is in seconds since the epoch."""

    time: float | None
    values: dict[str, Number]

    @property
    def step(self) -> float | None:
        """The step of the measurement; None if it has none, or an absurd one."""
        step = self.values.get("step")
        return float(step) if step is not None and abs(step) <= _LARGEST_STEP else None


def parse_measurement(record: Mapping[str, Any]) -> Measurement:
    """The measurement in one line; anything that is not a number is dropped."""
    fields = Fields(record)
    values = fields.numbers()
    values.pop("time", None)
    return Measurement(fields.moment("time"), values)


def measurements_in(lines: Iterable[bytes]) -> Iterator[Measurement]:
    """The measurements in `lines`, parsed lazily; incomplete and foreign lines are dropped."""
    return map(parse_measurement, records_in(lines))


def repeated_from(
    attempts: Iterable[Attempt], read: Callable[[Path], Iterable[dict[str, Any]]]
) -> Iterator[tuple[Attempt, float]]:
    """The `attempts`, which come newest first, each with the first step that a later one repeated (infinite: none).

    An attempt that continues from a checkpoint repeats all steps from its first one. `read` returns the records of a
    file. `History` cuts its curves by the same rule, as it reads only what was appended.
    """
    repeated, later = math.inf, None
    for attempt in attempts:
        if later:
            steps = (parse_measurement(record).step for record in read(later.metrics))
            repeated = min(repeated, next((step for step in steps if step is not None), math.inf))
        yield attempt, repeated
        later = attempt


def records_once(
    attempts: Sequence[Attempt], read: Callable[[Path], Iterable[dict[str, Any]]]
) -> Iterator[tuple[Attempt, dict[str, Any]]]:
    """The records of a run's attempts, the newest attempt first, without steps that a later attempt repeated."""
    for attempt, repeated in repeated_from(reversed(attempts), read):
        for record in read(attempt.metrics):
            step: Any = record.get("step")
            if type(step) not in (int, float) or not step >= repeated:
                yield attempt, record


def newest_values(lines: list[bytes]) -> dict[str, Number]:
    """The newest value of each name: losses and accuracies are on different lines."""
    merged: dict[str, Number] = {}
    shapes = set()
    for line in reversed(lines):
        shape = tuple(line.split(b'"')[1::2])  # its names: lines with the same names as a newer one need not be parsed
        if shape not in shapes:
            for measurement in measurements_in([line]):
                shapes.add(shape)
                merged = measurement.values | merged
    return merged


_LONG_SECONDS = 3600.0  # between the lines that a pace is taken from: look closer
_JUMP = 100  # times all other pauses together: no evaluation takes that long
_LONGEST_PAUSE_SECONDS = 6 * 3600.0  # between two steps


@dataclass(frozen=True)
class Pace:
    """Steps per second over the last steps, including evaluations in between, and the time of the last step."""

    steps_per_second: float
    time: float


def pace_of(lines: list[bytes]) -> Pace | None:
    """The pace from lines of metrics.jsonl; None before the second step."""
    last, first = _first_step(reversed(lines)), _first_step(lines)
    if last is None or first is None or last[0] <= first[0]:
        return None
    steps, seconds = last[0] - first[0], last[1] - first[1]
    if not 0 < seconds < _LONG_SECONDS:  # the node's clock was set, or the node suspended: count only even pauses
        known = [
            (one.step, one.time) for one in measurements_in(lines) if one.step is not None and one.time is not None
        ]
        pairs = [(step - before, at - then) for (before, then), (step, at) in itertools.pairwise(known)]
        total = sum(pause for _, pause in pairs if pause > 0)
        even = [
            (more, pause)
            for more, pause in pairs
            if pause >= 0 and (len(pairs) == 1 or pause <= _JUMP * (total - pause))
        ]
        steps, seconds = sum(more for more, _ in even), sum(pause for _, pause in even)
    return Pace(steps / seconds, last[1]) if steps > 0 and seconds > 0 else None


def progress(metrics: Mapping[str, float]) -> float | None:
    """The completed share of the training, from 0 to 1, by steps, else by epochs."""
    for done, total in (("step", "steps"), ("epoch", "epochs")):
        if done in metrics and metrics.get(total, 0) > 0:
            return min(1.0, max(0.0, metrics[done] / metrics[total]))
    return None


def seconds_left(metrics: Mapping[str, float], pace: Pace | None, now: float) -> float | None:
    """The time that the remaining steps will take at this pace; None if their number is unknown, or if it is over."""
    if pace is None or "steps" not in metrics or "step" not in metrics:
        return None
    since = max(0.0, now - pace.time)
    if since > _LONGEST_PAUSE_SECONDS:  # one of the two clocks is wrong
        since = 0.0
    left = (metrics["steps"] - metrics["step"]) / pace.steps_per_second
    return None if 0 < left < since else max(0.0, left - since)


def _first_step(lines: Iterable[bytes]) -> tuple[float, float] | None:
    found = ((measured.step, measured.time) for measured in measurements_in(lines))
    return next(((step, time) for step, time in found if step is not None and time is not None), None)


def metric_rows(run: RunDir) -> list[dict[str, Any]]:
    """The records of all attempts, one dict each. Steps that a later attempt repeated from a checkpoint count once."""
    found: dict[int, list[dict[str, Any]]] = {}  # by attempt, the newest first
    for attempt, record in records_once(run.attempts(), lambda path: records_in(Growing(path).added())):
        found.setdefault(attempt.number, []).append({"attempt": attempt.number, **record})
    return [one for records in reversed(found.values()) for one in records]
