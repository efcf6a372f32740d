"""The metrics of an attempt, typed, and its pace by them: the one reader of what `clusterctl.runs.metrics` writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.observe.lines import records_in
from clusterctl.runs.fields import Fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from clusterctl.runs.vocabulary import Number


_LARGEST_STEP = 2.0**63  # a chart's axis is as long as the difference of two


class Measurement(NamedTuple):
    """The numbers of one line by name; NaN and the infinities are among them, `time` (seconds since the epoch) not."""

    time: float | None
    values: dict[str, Number]

    @property
    def step(self) -> float | None:
        """The step that it belongs to; None where it names none, or one that nobody can count to."""
        step = self.values.get("step")
        return float(step) if step is not None and abs(step) <= _LARGEST_STEP else None


def parse_measurement(record: Mapping[str, Any]) -> Measurement:
    """The measurement in one line; whatever is no number is dropped."""
    fields = Fields(record)
    values = fields.numbers()
    values.pop("time", None)
    return Measurement(fields.moment("time"), values)


def measurements_in(lines: Iterable[bytes]) -> Iterator[Measurement]:
    """The measurements in `lines`, each parsed when it is asked for; torn and foreign lines are dropped."""
    return map(parse_measurement, records_in(lines))


def newest_values(lines: list[bytes]) -> dict[str, Number]:
    """The newest value of each name: losses and accuracies are in different lines."""
    merged: dict[str, Number] = {}
    shapes = set()
    for line in reversed(lines):
        shape = tuple(line.split(b'"')[1::2])  # its names: most steps have the same ones, so one of them is parsed
        if shape not in shapes:
            for measurement in measurements_in([line]):
                shapes.add(shape)
                merged = measurement.values | merged
    return merged


@dataclass(frozen=True)
class Pace:
    """Steps a second over the last steps, evaluations between them included, and the time of the last step."""

    steps_per_second: float
    time: float


def pace_of(lines: list[bytes]) -> Pace | None:
    """The pace by lines of metrics.jsonl; None before the second step."""
    last, first = _first_step(reversed(lines)), _first_step(lines)
    if last is None or first is None or last[0] <= first[0] or last[1] <= first[1]:
        return None
    return Pace((last[0] - first[0]) / (last[1] - first[1]), last[1])


def progress(metrics: Mapping[str, float]) -> float | None:
    """The share of the training that is done, from 0 to 1: by its steps, else by its epochs."""
    for done, total in (("step", "steps"), ("epoch", "epochs")):
        if done in metrics and metrics.get(total, 0) > 0:
            return min(1.0, max(0.0, metrics[done] / metrics[total]))
    return None


def seconds_left(metrics: Mapping[str, float], pace: Pace | None, now: float) -> float | None:
    """How long the steps that are left will take at this pace; None where nobody knows how many there are."""
    if pace is None or "steps" not in metrics or "step" not in metrics:
        return None
    since = max(0.0, now - pace.time)
    return max(0.0, (metrics["steps"] - metrics["step"]) / pace.steps_per_second - since)


def _first_step(lines: Iterable[bytes]) -> tuple[float, float] | None:
    found = ((measured.step, measured.time) for measured in measurements_in(lines))
    return next(((step, time) for step, time in found if step is not None and time is not None), None)
