"""What the ranks of a run wrote: chosen, merged by time, read whole, from the end, or as it grows.

A line has the time that it begins with, or that of the line before it. Within an attempt the lines of all files are
merged by their times; each file's own order stays. However large the logs are, little of them is held.
"""

from __future__ import annotations

import calendar
import functools
import heapq
import itertools
import re
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.errors import NotFoundError
from clusterctl.observe.attempt import read_host
from clusterctl.observe.lines import Growing, last_lines_offset
from clusterctl.observe.rank_events import beginning
from clusterctl.runs.stamp import LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from clusterctl.runs.layout import Attempt, RunDir

# Of all files that are merged at a time; a thousand ranks' are read in small pieces.
_MEMORY_BYTES = 2**24
_LEAST_BLOCK_BYTES, _MOST_BLOCK_BYTES = 2**13, 2**18
_ALIKE_SECONDS = 2.0  # ranks are not that far apart, nor their clocks
_MOST_ALIKE = 2000  # lines that wait for their like
_OURS = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")
# 2026-01-02 03:04:05,678 and its kin, in brackets or not. Without a zone it is this machine's, as on its cluster.
_OTHERS = re.compile(
    rb"\[?(?P<second>\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d)"
    rb"(?P<part>[.,]\d{1,9})?(?P<zone>Z|[+-]\d\d:?\d\d)?(?=[\]\s:]|$)"
)
_Waiting = OrderedDict[tuple[int, bytes], tuple["Line", list[int]]]


@dataclass(frozen=True)
class Selection:
    """Which logs; None takes all. `host`: the batch script's too, where slurmstepd and the container runtime write."""

    attempt: int | None = None
    rank: int | None = None
    streams: tuple[str, ...] = ("out", "err")
    host: bool = False
    node: str | None = None


class Source(NamedTuple):
    """One log file, and whose it is; `rank` is None for the batch script's."""

    attempt: int
    rank: int | None
    path: Path


class Line(NamedTuple):
    """One line of a log, as the bytes that were written, without its newline; `ranks` where several wrote the same."""

    source: Source
    content: bytes
    time: float = 0.0
    ranks: tuple[int, ...] = ()

    @property
    def text(self) -> bytes:
        """The content, without the time that the task gave it."""
        return without_stamp(self.content)

    def __str__(self) -> str:
        return self.text.decode(errors="replace")


def sources(run: RunDir, selection: Selection) -> list[Source]:
    """The log files there are now, in the order of attempts, ranks, streams.

    The batch script's is among them when asked for, and where no rank ever started: it then holds the reason.
    """
    nodes = Nodes(run)
    attempts = (attempt for attempt in run.attempts() if selection.attempt in (None, attempt.number))
    return [source for attempt in attempts for source in _sources_of(attempt, selection, nodes)]


@dataclass
class Logs:
    """The chosen logs of one run, read as they grow. `tail` bounds each file to its last lines at the first look."""

    run: RunDir
    selection: Selection
    tail: int | None = None
    _files: dict[Path, _File] = field(default_factory=dict, init=False)
    _looked: bool = field(default=False, init=False)

    def read(self, *, ended: bool) -> Iterator[Line]:
        """The lines added since the last call; with `ended`, also last lines that have no newline."""
        for _, files in itertools.groupby(sources(self.run, self.selection), key=lambda source: source.attempt):
            found = list(files)
            block_bytes = max(_LEAST_BLOCK_BYTES, min(_MOST_BLOCK_BYTES, _MEMORY_BYTES // len(found)))
            streams = [self._file(source).lines(place, block_bytes, ended=ended) for place, source in enumerate(found)]
            for _, _, line in heapq.merge(*streams) if len(streams) > 1 else itertools.chain(*streams):
                yield line
        self._looked = True

    def _file(self, source: Source) -> _File:
        file = self._files.get(source.path)
        if file is None:
            whole = self.tail is None or self._looked  # a file that comes later is new: all of it
            offset = 0 if whole else last_lines_offset(source.path, self.tail or 0)
            start = read_host(self.run.attempt(source.attempt)).start or 0.0  # of lines before the first with a time
            file = self._files[source.path] = _File(source, Growing(source.path, offset), start)
        return file


@dataclass
class _File:
    source: Source
    growing: Growing
    time: float

    def lines(self, place: int, block_bytes: int, *, ended: bool) -> Iterator[tuple[float, int, Line]]:
        """The lines added, each with its time and the place of the file, by which they are merged."""
        added = itertools.chain(self.growing.added(block_bytes), self._rest() if ended else ())
        for content in added:
            begins = time_of(content)
            if begins is not None and begins > self.time:  # never back: a file's order stays
                self.time = begins
            yield self.time, place, Line(self.source, content, self.time)

    def _rest(self) -> Iterator[bytes]:
        yield from self.growing.rest()


class Nodes:
    """Which node each rank of a run was on, read from a rank's first event when somebody asks."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._known: dict[tuple[int, int], str] = {}

    def of(self, attempt: int, rank: int) -> str:
        if not self._known.get((attempt, rank)):
            began = beginning(self._run.attempt(attempt).events(rank))
            self._known[attempt, rank] = began.node if began else ""
        return self._known[attempt, rank]


def check_selection(run: RunDir, selection: Selection) -> None:
    """Raise NotFoundError for an attempt, a node or a rank that the run does not have."""
    attempts = [attempt.number for attempt in run.attempts()]
    if selection.attempt is not None and selection.attempt not in attempts:
        known = ", ".join(map(str, attempts)) or "none yet"
        raise NotFoundError(f"no attempt {selection.attempt} in {run.id}", f"it has {known}")
    ranks = sorted({source.rank for source in sources(run, Selection(selection.attempt)) if source.rank is not None})
    if selection.node is not None:
        nodes = Nodes(run)
        names = {nodes.of(attempt.number, rank) for attempt in run.attempts() for rank in attempt.event_files()} - {""}
        if selection.node not in names:
            known = ", ".join(sorted(names)) or "none yet"
            raise NotFoundError(f"no node {selection.node} in {run.id}", f"it has {known}")
    if selection.rank is not None and ranks and selection.rank not in ranks:
        raise NotFoundError(f"no rank {selection.rank} in {run.id}", f"it has {', '.join(map(str, ranks))}")


def _sources_of(attempt: Attempt, selection: Selection, nodes: Nodes) -> list[Source]:
    files = [
        Source(attempt.number, rank, path)
        for stream in selection.streams
        for rank, path in attempt.log_files(stream).items()
        if selection.rank in (None, rank)
        and (selection.node is None or selection.node == nodes.of(attempt.number, rank))
    ]
    files.sort(key=lambda source: source.rank or 0)  # stable: a rank's streams stay in order
    if attempt.host_log.exists() and (selection.host or not attempt.event_files()):
        files.insert(0, Source(attempt.number, None, attempt.host_log))
    return files


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
            if len(waiting) < _MOST_ALIKE and line.time - waiting[first][0].time <= _ALIKE_SECONDS:
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


def is_stamped(line: bytes) -> bool:
    """Whether the line begins with the time that a task gave it."""
    return line[23:25] == b"Z " and _OURS.match(line) is not None


def without_stamp(line: bytes) -> bytes:
    return line[LENGTH:] if is_stamped(line) else line


def time_of(line: bytes) -> float | None:
    """Seconds since the epoch; None for a line that does not begin with a time."""
    if line[23:25] == b"Z " and line[19:20] == b"." and line[20:23].isdigit():
        try:
            return _seconds(line[:19], b"Z") + int(line[20:23]) / 1000
        except ValueError:
            return None
    if line[4:5] not in (b"-", b"/") and line[5:6] not in (b"-", b"/"):  # most lines end here
        return None
    match = _OTHERS.match(line)
    if match is None:
        return None
    try:
        whole = _seconds(match["second"], match["zone"])
    except (ValueError, OverflowError):  # the 40th of May
        return None
    return whole + float(b"0." + match["part"][1:]) if match["part"] else whole


@functools.lru_cache(maxsize=4096)
def _seconds(second: bytes, zone: bytes | None) -> float:
    parsed = time.strptime(second.decode().replace("/", "-").replace("T", " "), "%Y-%m-%d %H:%M:%S")
    if zone is None:
        return time.mktime(parsed)
    shift = 0
    if zone != b"Z":
        digits = zone[1:].replace(b":", b"")
        shift = (int(digits[:2]) * 3600 + int(digits[2:]) * 60) * (-1 if zone[:1] == b"-" else 1)
    return calendar.timegm(parsed) - shift
