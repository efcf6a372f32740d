"""Which ranks slow the others down: a pure rule.

In synchronous training every rank's step takes as long as the slowest rank's, and all are at the same step; what tells
them apart is the part of the step in which a rank does not wait for the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median_low
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

LEAST_SLOWDOWN = 1.5
LEAST_SECONDS = 0.002  # a step; less is noise of the machine


@dataclass(frozen=True)
class Straggler:
    """A rank that takes `slowdown` times as long for its part of a step as the median of all."""

    rank: int
    slowdown: float
    seconds: float
    usual_seconds: float


def stragglers(busy: Mapping[int, float | None]) -> list[Straggler]:
    """The ranks that are clearly slower than the others, the slowest first. Two ranks are compared with each other.

    `busy`: rank -> the seconds of a training step in which it does not wait; None where it has not said.
    """
    known = {rank: seconds for rank, seconds in busy.items() if seconds is not None}
    if not known:
        return []
    usual = median_low(known.values())
    found = [
        Straggler(rank, seconds / usual if usual > 0 else float("inf"), seconds, usual)
        for rank, seconds in known.items()
        if seconds >= LEAST_SLOWDOWN * usual and seconds - usual >= LEAST_SECONDS
    ]
    return sorted(found, key=lambda straggler: -straggler.slowdown)
