"""How fast a training goes, and how long it will still take: from the times of its last steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.observe.measurements import measurements_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True)
class Pace:
    """Steps a second over the last steps, evaluations between them included, and the time of the last step."""

    steps_per_second: float
    time: float


def pace_of(lines: list[bytes]) -> Pace | None:
    """The pace by lines of metrics.jsonl; None before the second step."""
    last = _first_step(reversed(lines))
    first = _first_step(lines)
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
    """Step and time of the first of `lines` that is one of a step."""
    found = ((measured.step, measured.time) for measured in measurements_in(lines))
    return next(((step, time) for step, time in found if step is not None and time is not None), None)
