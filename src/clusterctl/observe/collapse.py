"""Lines that many ranks wrote at about the same time, as one."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from clusterctl.observe.logs import Line

_Waiting = OrderedDict[tuple[int, bytes], tuple["Line", list[int]]]
_SECONDS = 2.0  # ranks are not that far apart, nor their clocks
_MOST_LINES = 2000  # that wait for their like


def collapsed(lines: Iterable[Line]) -> Iterator[Line]:
    """`lines`, with the same text of other ranks gathered at its first place. A rank's own repetitions all stay."""
    waiting: _Waiting = OrderedDict()  # a dict takes ever longer to find its first key when many were removed
    for line in lines:
        rank = line.source.rank
        if rank is None:
            yield from _released(waiting)
            yield line
            continue
        while waiting:
            first = next(iter(waiting))
            if len(waiting) < _MOST_LINES and line.time - waiting[first][0].time <= _SECONDS:
                break
            yield _joined(*waiting.pop(first))
        key = (line.source.attempt, line.text)
        known = waiting.get(key)
        if known is not None and rank in known[1]:  # again: what came before is complete
            yield from _released(waiting)
            known = None
        if known is None:
            waiting[key] = (line, [rank])
        else:
            known[1].append(rank)
    yield from _released(waiting)


def _released(waiting: _Waiting) -> Iterator[Line]:
    for line, ranks in waiting.values():
        yield _joined(line, ranks)
    waiting.clear()


def _joined(line: Line, ranks: list[int]) -> Line:
    return line if len(ranks) == 1 else line._replace(ranks=tuple(sorted(ranks)))
