"""Collapse identical lines of several ranks into one."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from clusterctl.launcher.observe.logs import Line

_ALIKE_SECONDS = 2.0  # ranks and their clocks differ by less
_MOST_ALIKE = 2000  # lines waiting for duplicates


def collapsed(lines: Iterable[Line]) -> Iterator[Line]:
    """`lines` with identical lines of other ranks merged into the first. Repetitions by the same rank are kept."""
    waiting: deque[_Group] = deque()  # in the order of their first lines
    by_text: dict[tuple[int, bytes], _Repetitions] = {}

    def release() -> Line:
        group = waiting.popleft()
        key = (group.line.source.attempt, group.line.text)
        if by_text[key].release():
            del by_text[key]
        return group.line._replace(ranks=tuple(sorted(group.ranks))) if len(group.ranks) > 1 else group.line

    for line in lines:
        rank = line.source.rank
        most = 0 if rank is None else _MOST_ALIKE  # no merging across a line of the batch script
        while waiting and (len(waiting) >= most or line.time - waiting[0].line.time > _ALIKE_SECONDS):
            yield release()
        if rank is None:
            yield line
        elif fresh := by_text.setdefault((line.source.attempt, line.text), _Repetitions()).add(line, rank):
            waiting.append(fresh)
    while waiting:
        yield release()


@dataclass(slots=True)
class _Group:
    line: Line
    ranks: list[int]


@dataclass(slots=True)
class _Repetitions:
    """The waiting groups of one text: a rank's first line goes into the first group, its second into the second."""

    groups: deque[_Group] = field(default_factory=deque)
    released: int = 0
    next: dict[int, int] = field(default_factory=dict)  # rank -> its next group, counted from the first ever

    def add(self, line: Line, rank: int) -> _Group | None:
        """Add a line; returns the group if it starts a new one."""
        place = max(self.next.get(rank, 0), self.released)
        self.next[rank] = place + 1
        if place - self.released < len(self.groups):
            self.groups[place - self.released].ranks.append(rank)
            return None
        self.groups.append(_Group(line, [rank]))
        return self.groups[-1]

    def release(self) -> bool:
        """Drop the first group; returns whether it was the last one."""
        self.groups.popleft()
        self.released += 1
        return not self.groups
