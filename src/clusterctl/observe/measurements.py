"""The metrics of an attempt, typed: the one reader of the lines that `clusterctl.runs.metrics` writes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.runs.fields import Fields
from clusterctl.runs.files import parse_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from clusterctl.runs.vocabulary import Number


class Measurement(NamedTuple):
    """The numbers of one line by name; NaN and the infinities are among them, `time` (seconds since the epoch) not."""

    time: float | None
    values: dict[str, Number]

    @property
    def step(self) -> float | None:
        """The step that it belongs to; None where it names none."""
        step = self.values.get("step")
        return float(step) if step is not None and math.isfinite(step) else None


def parse_measurement(record: Mapping[str, Any]) -> Measurement:
    """The measurement in one line; whatever is no number is dropped."""
    fields = Fields(record)
    values = fields.numbers()
    values.pop("time", None)
    return Measurement(fields.moment("time"), values)


def measurements_in(lines: Iterable[bytes]) -> Iterator[Measurement]:
    """The measurements in `lines`, each parsed when it is asked for; torn and foreign lines are dropped."""
    return (parse_measurement(record) for line in lines if (record := parse_record(line)) is not None)


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
