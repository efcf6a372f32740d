"""An axis for the values of a setting or a metric: numbers to scale, other values evenly spaced."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.display.report.charts import tick_text, ticks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_LARGEST = 1e300  # differences of larger values overflow
_WIDE = 100  # a wider range of numbers is drawn logarithmically
_LEAST_GAP = 0.055  # between two labels


class Scale(NamedTuple):
    """The position of each value, from 0 to 1, and the axis labels with their positions."""

    places: Mapping[str, float]
    labels: tuple[tuple[float, str], ...]


def scale_of(texts: Iterable[str], named: int = 8) -> Scale:
    """The axis of these values. Up to `named` numbers are labelled; if there are more, round numbers are."""
    distinct = ordered(texts)
    values = [number_of(text) for text in distinct]
    numbers = [value for value in values if value is not None]
    if len(numbers) < len(distinct):
        last = len(distinct) - 1
        places = {text: index / last if last else 0.5 for index, text in enumerate(distinct)}
        return Scale(places, _apart([(place, text) for text, place in places.items()]))
    low, high = numbers[0], numbers[-1]
    logarithmic = 0 < low < high / _WIDE

    def place(value: float) -> float:
        first, last, at = (math.log10(one) if logarithmic else one for one in (low, high, value))
        return (at - first) / (last - first) if last > first else 0.5

    places = {text: place(value) for text, value in zip(distinct, numbers, strict=True)}
    if len(distinct) <= named:
        return Scale(places, _apart([(place, text) for text, place in places.items()]))
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1) if logarithmic else ()
    inner = [10.0**power for power in powers] or [tick for tick in ticks(low, high) if low < tick < high]
    return Scale(places, _apart([(place(value), tick_text(value)) for value in (low, high, *inner)]))


def ordered(texts: Iterable[str]) -> list[str]:
    """The distinct values: numbers in ascending order, then the others alphabetically."""
    return sorted(set(texts), key=_size)


def number_of(text: str) -> float | None:
    """`text` as a number, if it is one that can be drawn."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= _LARGEST else None


def _size(text: str) -> tuple[float, str]:
    value = number_of(text)
    return (math.inf if value is None else value, text)


def _apart(labels: list[tuple[float, str]]) -> tuple[tuple[float, str], ...]:
    """The labels without those too close to an earlier one."""
    kept: list[tuple[float, str]] = []
    for place, text in labels:
        if all(abs(place - other) >= _LEAST_GAP for other, _ in kept):
            kept.append((place, text))
    return tuple(kept)
