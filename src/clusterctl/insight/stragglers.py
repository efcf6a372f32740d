"""Which ranks slow the others down, from their heartbeats: a pure rule.

In synchronous training every rank's step takes as long as the slowest rank's; what tells them apart is the part of the
step in which a rank does not wait for the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.runs.heartbeats import Beat

LEAST_SLOWDOWN = 1.5
LEAST_SECONDS = 0.002  # a step; less is noise of the machine


@dataclass(frozen=True)
class Straggler:
    """A rank that takes `slowdown` times as long for its part of a step as the median of the others."""

    rank: int
    node: str
    slowdown: float
    seconds: float
    usual_seconds: float


def stragglers(beats: Mapping[int, Beat]) -> list[Straggler]:
    """The ranks that are clearly slower than the others, the slowest first. Two ranks are compared with each other."""
    busy = {
        rank: beat.busy_seconds
        for rank, beat in beats.items()
        if beat.phase == Stage.TRAINING and beat.busy_seconds is not None
    }
    found = []
    for rank, seconds in busy.items():
        others = [value for other, value in busy.items() if other != rank]
        if not others:
            continue
        usual = median(others)
        if seconds >= LEAST_SLOWDOWN * usual and seconds - usual >= LEAST_SECONDS:
            slowdown = seconds / usual if usual > 0 else float("inf")
            found.append(Straggler(rank, beats[rank].host, slowdown, seconds, usual))
    return sorted(found, key=lambda straggler: -straggler.slowdown)
