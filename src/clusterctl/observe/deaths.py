"""srun's reports of tasks that failed on their own, before the others were terminated."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_TASK = re.compile(r"srun: error: (?P<node>[^\s:]+): tasks? (?P<ranks>[\d,-]+): (?P<how>.+)")
# From here on, tasks end because they were terminated.
_ABORTED = re.compile(
    r"srun: (?:\S+ _step_signal: )?Terminating|\*\*\* STEP \S+ ON .* CANCELLED|Job step aborted|Terminating job step"
    r"|forcing job termination"
)
_MOST_RANKS = 100_000
_EXITED = "Exited with exit code "


@dataclass(frozen=True)
class Death:
    """A task that failed before the others were terminated; `order` counts srun's lines."""

    rank: int
    node: str
    how: str
    order: int

    @property
    def code(self) -> int | None:
        """The exit code; None if a signal ended the task."""
        code = self.how.removeprefix(_EXITED)
        return int(code) if code != self.how and code.isdecimal() else None


def deaths(lines: Iterable[str]) -> list[Death]:
    """The tasks that failed on their own, in the order in which srun noticed.

    This order is the same for all nodes, unlike times by the ranks' own clocks.
    """
    found: list[Death] = []
    for order, line in enumerate(lines):
        if _ABORTED.search(line):
            break
        if match := _TASK.search(line):
            found += [Death(rank, match["node"], match["how"], order) for rank in ranks_of(match["ranks"])]
    return found


def ended_together(lines: Iterable[str]) -> bool:
    """Whether srun ended all tasks at once, because a task had failed or because it was told to."""
    return any(map(_ABORTED.search, lines))


def ranks_of(text: str) -> list[int]:
    """Slurm's list of tasks: "0-1,3" is 0, 1, 3."""
    ranks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last.isdigit() or not last):
            ranks += range(int(first), min(int(last or first), int(first) + _MOST_RANKS) + 1)
    return ranks
