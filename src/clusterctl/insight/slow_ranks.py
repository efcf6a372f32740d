"""Which ranks hold the others up: those whose steps take much longer, or who are behind, by the median of all."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SLOW = 1.5  # times the median
_LEAST_RANKS = 3  # of two, nobody can say which one is the odd one out
_LEAST_STEPS_BEHIND = 2  # neighbours report at different moments


@dataclass(frozen=True)
class Pace:
    """How a rank goes: seconds a step, and steps done; None where it has not said."""

    seconds: float | None = None
    step: float | None = None


@dataclass(frozen=True)
class Straggler:
    """A rank that holds the others up: `slower` times the median's seconds, `behind` the median by steps."""

    rank: int
    slower: float
    behind: float


def stragglers(paces: Mapping[int, Pace]) -> list[Straggler]:
    """The stragglers among `paces` (rank -> pace), the worst one first; none among fewer than three ranks."""
    seconds = [pace.seconds for pace in paces.values() if pace.seconds is not None]
    steps = [pace.step for pace in paces.values() if pace.step is not None]
    if len(paces) < _LEAST_RANKS:
        return []
    usual, reached = (median(seconds) if seconds else 0.0), (median(steps) if steps else 0.0)
    found = []
    for rank, pace in paces.items():
        slower = pace.seconds / usual if pace.seconds is not None and usual > 0 else 1.0
        behind = reached - pace.step if pace.step is not None else 0.0
        if slower >= SLOW or behind >= _LEAST_STEPS_BEHIND:
            found.append(Straggler(rank, slower, max(0.0, behind)))
    return sorted(found, key=lambda straggler: (-straggler.behind, -straggler.slower, straggler.rank))
