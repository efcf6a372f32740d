"""The logs of a run's ranks: selected, merged by time, and read in full, from the end, or as they grow.

The time of a line is the timestamp at its start, else the time at which it was written, else that of the line before.
Within an attempt the lines of all files are merged by time, keeping the order within each file. Memory use is bounded,
however large the logs are. `LogPace` decides which files of a followed run to check, `WrittenTimes` reads the times at
which lines without a timestamp were written.

Of any other job, the output of its batch script: the beginning and the end of its files, since its last start. A job
that Slurm has started again may append to the files of its earlier starts.
"""

from __future__ import annotations

import calendar
import functools
import heapq
import itertools
import re
import time
from collections import deque
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from clusterctl.launcher.observe.attempt import read_host
from clusterctl.launcher.observe.lines import MISSING, Growing, last_lines_offset, offset_of_time, text_lines
from clusterctl.launcher.observe.rank_events import beginnings, event_files
from clusterctl.launcher.observe.slurm_log import EndedBy, job_ends
from clusterctl.shared.errors import NotFoundError
from clusterctl.shared.record.fields import Fields
from clusterctl.shared.record.files import exists, modified_at, parse_record, status_of
from clusterctl.shared.record.stamp import LENGTH

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from clusterctl.shared.record.layout import Attempt, RunDir


SHORTEST_SECONDS, LONGEST_SECONDS = 0.25, 2.0  # between two checks
SIZES_A_SECOND, OPENS_A_SECOND = 1024, 24
_LIVELY_SECONDS = 10.0  # a file that has grown is included in every check for this long
_MOST_LIVELY = 64

File = TypeVar("File", bound=Hashable)


@dataclass
class Turns(Generic[File]):
    """Cycles through any number of files at `rate` files per second."""

    rate: float
    _place: int = 0

    def next(self, files: Sequence[File], seconds: float) -> Sequence[File]:
        count = int(self.rate * seconds)
        if count >= len(files):
            return files
        first = self._place if self._place < len(files) else 0
        self._place = first + count
        return files[first : self._place]


@dataclass
class LogPace(Generic[File]):
    """Which files to check, and when: rarely if nothing happens, for any number of ranks.

    For one reader; times are seconds by its clock.
    """

    _looked: float | None = None
    _looked_at_all: float = 0.0
    _pause: float = SHORTEST_SECONDS
    _surprised: bool = False
    _grew: dict[File, float] = field(default_factory=dict)  # when, the latest last
    _sizes: Turns[File] = field(default_factory=lambda: Turns(SIZES_A_SECOND))
    _opens: Turns[File] = field(default_factory=lambda: Turns(OPENS_A_SECOND))

    def is_due(self, now: float) -> bool:
        return self._looked is None or not 0 <= now - self._looked < self._pause

    def look(self, files: Sequence[File], now: float) -> tuple[set[File], set[File]]:
        """The files to stat, and the files to open at any size."""
        seconds = LONGEST_SECONDS if self._looked is None else min(max(now - self._looked, 0.0), LONGEST_SECONDS)
        self._looked = now
        lively = {file for file, grown in self._grew.items() if now - grown < _LIVELY_SECONDS}
        sizes, opens = set(self._sizes.next(files, seconds)), set(self._opens.next(files, seconds))
        # A file that was quiet has grown: others may have, too, so all are checked, unless that was just done.
        if self._surprised and now - self._looked_at_all > len(files) / SIZES_A_SECOND:
            self._looked_at_all, self._surprised = now, False
            sizes = set(files)
        return sizes | (lively & set(files)), opens

    def saw(self, grown: Iterable[File], now: float) -> None:
        """Record which files had grown at the last check."""
        found = list(grown)
        self._surprised |= any(file not in self._grew for file in found)
        for file in found:
            self._grew.pop(file, None)
            self._grew[file] = now
        for file in list(self._grew)[:-_MOST_LIVELY]:
            del self._grew[file]
        self._pause = SHORTEST_SECONDS if found else min(2 * self._pause, LONGEST_SECONDS)


_BLOCK_BYTES = 2**13  # a thousand ranks hold one each


class WrittenTimes:
    """The times at which one log was written (`record.stamp.LogTimes`), queried in order of offset."""

    def __init__(self, notes: Path, log: Path) -> None:
        self._growing = Growing(notes)
        self._log = log
        self._notes = self._growing.added(_BLOCK_BYTES)
        self._at_end = False  # of the notes present at the last refresh
        self._newest: float | None = None
        self._size = 0
        self._time: float | None = None

    def refresh(self) -> None:
        """Allow new notes to be read when needed."""
        if self._at_end:
            self._notes = self._growing.added(_BLOCK_BYTES)
            self._at_end = False

    def of(self, offset: int) -> float | None:
        """When the byte at `offset` was written; None for a log without notes. Offsets must not decrease."""
        while self._size <= offset:
            if self._at_end:
                return self._newest
            if (note := next(self._notes, None)) is None:
                self._at_end, self._newest = True, self._time
                if self._time is not None:
                    with suppress(OSError):  # the part that no note covers yet
                        self._newest = self._log.stat().st_mtime
                continue
            record = Fields(parse_record(note) or {})
            size, moment = record.whole(self._log.suffix[1:]), record.moment("time")
            if size is not None and moment is not None:
                self._size, self._time = size, moment
        return self._time


# For all files merged at a time; those of a thousand ranks are read in small pieces.
_MEMORY_BYTES = 2**24
_LEAST_BLOCK_BYTES, _MOST_BLOCK_BYTES = 2**12, 2**18
_LISTED_SECONDS = 10.0
_ARRIVAL_SECONDS = 60.0  # within which the files of other nodes arrive
_CLOCK_SECONDS = 60.0  # by which a node's clock may go backwards
_OURS = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")
# 2026-01-02 03:04:05,678 and similar, with or without brackets. Without a time zone, this machine's is assumed.
_OTHERS = re.compile(
    rb"\[?(?P<second>\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d)"
    rb"(?P<part>[.,]\d{1,9})?(?P<zone>Z|[+-]\d\d:?\d\d)?(?=[\]\s:]|$)"
)


MOST_LOGS = 32  # ranks whose logs are read for a screen; if there are more, only rank 0, to spare the file server


@dataclass(frozen=True)
class Selection:
    """Which logs to read; None selects all. `host`: include the batch script's, with slurmstepd's and pyxis's lines."""

    attempt: int | None = None
    rank: int | None = None
    streams: tuple[str, ...] = ("out", "err")
    host: bool = False
    node: str | None = None
    ranks: frozenset[int] | None = None  # those of a role
    worker: int | None = None  # of a launcher, by its rank in the world


class Source(NamedTuple):
    """One log file and its rank; None for the batch script's."""

    attempt: int
    rank: int | None
    path: Path


class Line(NamedTuple):
    """One line of a log in bytes, without its newline; `ranks` if several ranks wrote the same."""

    source: Source
    content: bytes
    time: float = 0.0
    ranks: tuple[int, ...] = ()
    timed: bool = True  # False before the first line of a file with a known time: `time` is then the attempt's start

    @property
    def text(self) -> bytes:
        """The content without the task's timestamp."""
        return without_stamp(self.content)

    def __str__(self) -> str:
        return self.text.decode(errors="replace")


# The prefix of a worker's line: torch's "[rank3]: ", mpirun's "[1,3]<stderr>:" or "[prterun-node1-7@1,3]<stdout>: ".
_OF_WORKER = re.compile(
    rb"\[rank(\d{1,9})\]:(?: |$)|\[\d+,(\d{1,9})\](?:<\w+>)?:|\[[\w.-]+@\d+,(\d{1,9})\](?:<\w+>)?: ?"
)


def worker_of(line: Line) -> int | None:
    """The worker of a launcher that wrote the line, by its rank in the world; None if the line does not name one."""
    found = _OF_WORKER.match(line.text)
    return int(found[found.lastindex or 0]) if found else None


def without_worker(text: bytes) -> bytes:
    """`text` without the prefixes that name its worker: both torchrun and torch may have added one."""
    while found := _OF_WORKER.match(text):
        text = text[found.end() :]
    return text


def sources(run: RunDir, selection: Selection) -> list[Source]:
    """The existing log files, ordered by attempt, rank and stream.

    The batch script's log is included if selected, or if no rank ever started, since it then has the reason.
    """
    nodes = Nodes(run)
    return [source for attempt in chosen_attempts(run, selection) for source in _sources_of(attempt, selection, nodes)]


def chosen_attempts(run: RunDir, selection: Selection) -> list[Attempt]:
    return [attempt for attempt in run.attempts() if selection.attempt in (None, attempt.number)]


@dataclass
class Logs:
    """The selected logs of one run, read as they grow.

    The first read is limited to the last `tail` lines of each file; with `since`, older lines may be skipped.
    """

    run: RunDir
    selection: Selection
    tail: int | None = None
    since: float | None = None
    _files: dict[Path, LogFile] = field(default_factory=dict, init=False)
    _starts: dict[int, float] = field(default_factory=dict, init=False)  # of attempts
    _folders: dict[int, _Folder] = field(default_factory=dict, init=False)
    _pace: LogPace[LogFile] = field(default_factory=LogPace, init=False)
    _looked: bool = field(default=False, init=False)

    def read(self, *, ended: bool) -> Iterator[Line]:
        """The lines added since the last call; with `ended`, including last lines without a newline."""
        yield from self._merged([self.file(source) for source in sources(self.run, self.selection)], ended=ended)
        self._looked = True

    def added(self, now: float) -> Iterator[Line]:
        """Like `read` for an active run, to be called several times a second with the current time `now`.

        Not every call checks every file (`LogPace`). The files of an attempt are skipped once a newer one has started
        and other nodes' last lines have arrived; `read` returns any later lines.
        """
        if not self._looked:
            yield from self.read(ended=False)
            return
        if not self._pace.is_due(now):
            return
        attempts = chosen_attempts(self.run, self.selection)
        files: list[LogFile] = []  # which may still grow
        for attempt in attempts:
            folder = self._folders.setdefault(attempt.number, _Folder(attempt, self.selection, Nodes(self.run)))
            if attempt is attempts[-1] or not folder.is_over(now):
                files += map(self.file, folder.sources(now))
        asked, opened = self._pace.look(files, now)
        due = [(file, file.size) for file in files if file in opened or (file in asked and file.has_grown())]
        yield from self._merged([file for file, _ in due], ended=False)
        self._pace.saw((file for file, size in due if file.size > size), now)

    def unfinished(self) -> Line | None:
        """The line that the lowest rank of the newest attempt has begun and not ended, such as a progress bar."""
        newest = max((file.source.attempt for file in self._files.values()), default=0)
        files = [file for file in self._files.values() if file.source.attempt == newest]
        begun = [file for file in files if file.growing.unfinished.strip()]
        file = min(begun, key=lambda file: file.source.rank or 0, default=None)
        return Line(file.source, file.growing.unfinished) if file else None

    @property
    def problems(self) -> list[str]:
        """The files that cannot be read, and why."""
        return [f"{path}: {file.growing.problem}" for path, file in self._files.items() if file.growing.problem]

    def file(self, source: Source) -> LogFile:
        file = self._files.get(source.path)
        if file is None:
            offset = 0
            if not self._looked:  # a file that appears later is read in full
                if self.tail is not None:
                    offset = last_lines_offset(source.path, self.tail)
                elif self.since is not None:
                    offset = offset_of_time(source.path, self.since - _CLOCK_SECONDS, time_of)
            attempt = self.run.attempt(source.attempt)
            times = None if source.rank is None else WrittenTimes(attempt.log_times(source.rank), source.path)
            if not self._starts.get(source.attempt):
                self._starts[source.attempt] = read_host(attempt).start or 0.0
            start = self._starts[source.attempt]  # the time of lines before the first with a time
            file = self._files[source.path] = LogFile(source, Growing(source.path, offset), start, times)
        return file

    def _merged(self, files: Iterable[LogFile], *, ended: bool) -> Iterator[Line]:
        for _, together in itertools.groupby(files, key=lambda file: file.source.attempt):
            found = list(together)
            block_bytes = max(_LEAST_BLOCK_BYTES, min(_MOST_BLOCK_BYTES, _MEMORY_BYTES // len(found)))
            streams = [file.lines(place, block_bytes, ended=ended) for place, file in enumerate(found)]
            for _, _, line in heapq.merge(*streams) if len(streams) > 1 else itertools.chain(*streams):
                yield line


@dataclass
class _Folder:
    """The logs of one attempt, listed again when their folder changes, and periodically, since NFS may be late."""

    attempt: Attempt
    selection: Selection
    nodes: Nodes
    _modified: int = -1
    _listed: float = 0.0
    _sources: list[Source] = field(default_factory=list)
    _followed: float | None = None  # when a newer attempt was first seen

    def sources(self, now: float) -> list[Source]:
        modified = modified_at(self.attempt.log(0).parent)
        unasked = not self.selection.host and any(source.rank is None for source in self._sources)
        if unasked or modified != self._modified or not 0 <= now - self._listed < _LISTED_SECONDS:
            self._modified, self._listed = modified, now
            self._sources = _sources_of(self.attempt, self.selection, self.nodes)
        return self._sources

    def is_over(self, now: float) -> bool:
        """Whether a newer attempt has existed for long enough that nothing more will arrive."""
        self._followed = now if self._followed is None else self._followed
        return now - self._followed > _ARRIVAL_SECONDS


@dataclass(eq=False, slots=True)
class LogFile:
    """One growing log; `time` is that of the last line read."""

    source: Source
    growing: Growing
    time: float
    written: WrittenTimes | None = None
    timed: bool = False  # whether the time of any line was known so far

    @property
    def size(self) -> int:
        """The bytes read so far."""
        return self.growing.offset

    def has_grown(self) -> bool:
        """Whether there is more to read according to stat; True if stat fails."""
        try:
            return status_of(self.source.path).st_size > self.size
        except FileNotFoundError:
            return False
        except OSError:
            return True

    def lines(self, place: int, block_bytes: int, *, ended: bool) -> Iterator[tuple[float, int, Line]]:
        """The lines added, each with the keys by which they are merged: time and position of the file."""
        for begin, block in self.blocks(block_bytes, ended=ended):
            for line in self.lines_in(begin, block):
                yield line.time, place, line

    def blocks(self, block_bytes: int = _MOST_BLOCK_BYTES, *, ended: bool) -> Iterator[tuple[int, bytes]]:
        """The lines added in blocks with their offsets; with `ended`, including a last line without a newline."""
        yield from self.growing.placed_blocks(block_bytes)
        if ended:
            yield from self.growing.placed_rest()

    def lines_in(self, place: int, block: bytes) -> Iterator[Line]:
        if self.written:
            self.written.refresh()
        for content in block.split(b"\n"):
            begins = time_of(content)
            if begins is None and self.written:
                begins = self.written.of(place)
            place += len(content) + 1
            if begins is not None:
                self.timed = True
                if begins > self.time:  # never backwards: keeps the order within a file
                    self.time = begins
            yield Line(self.source, content, self.time, timed=self.timed)


class Nodes:
    """The node of each rank of a run, read from the rank's first event when needed."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._known: dict[int, dict[int, str]] = {}

    def of(self, attempt: int, rank: int) -> str:
        return self.names(attempt, rank).get(rank, "")

    def names(self, attempt: int, rank: int | None = None) -> dict[int, str]:
        """Rank -> node, for the ranks that have started; read again until `rank` has."""
        known = self._known.get(attempt, {})
        if rank is None or rank not in known:
            begun = beginnings(self._run.attempt(attempt))
            known = self._known[attempt] = {number: began.node for number, began in begun.items()}
        return known


def check_selection(run: RunDir, selection: Selection) -> None:
    """Raise NotFoundError for an attempt, a node or a rank that the run does not have."""
    attempts = run.attempts()
    if selection.attempt is not None and selection.attempt not in [attempt.number for attempt in attempts]:
        known = ", ".join(str(attempt.number) for attempt in attempts) or "none yet"
        raise NotFoundError(f"no attempt {selection.attempt} in {run.id}", f"it has {known}")
    if selection.node is not None:
        nodes = Nodes(run)
        names = {name for attempt in attempts for name in nodes.names(attempt.number).values()} - {""}
        if selection.node not in names:
            known = ", ".join(sorted(names)) or "none yet"
            raise NotFoundError(f"no node {selection.node} in {run.id}", f"it has {known}")
    if selection.rank is not None:
        ranks = sorted({one.rank for one in sources(run, Selection(selection.attempt)) if one.rank is not None})
        if ranks and selection.rank not in ranks:
            raise NotFoundError(f"no rank {selection.rank} in {run.id}", f"it has {', '.join(map(str, ranks))}")


def _sources_of(attempt: Attempt, selection: Selection, nodes: Nodes) -> list[Source]:
    if selection.rank is None and selection.node is None and (own := _output_of_script(attempt, selection.streams)):
        return own
    files = [
        Source(attempt.number, rank, path)
        for stream in selection.streams
        for rank, path in attempt.log_files(stream, selection.rank).items()
        if selection.ranks is None or rank in selection.ranks
        if selection.node is None or selection.node == nodes.of(attempt.number, rank)
    ]
    files.sort(key=lambda source: source.rank or 0)  # stable: a rank's streams stay in order
    if exists(attempt.host_log) and (selection.host or not event_files(attempt)):
        files.insert(0, Source(attempt.number, None, attempt.host_log))
    return files


def _output_of_script(attempt: Attempt, streams: tuple[str, ...]) -> list[Source]:
    """The files where a batch script writes, which contain what its ranks write, too; empty for any other run."""
    files = {"out": attempt.script_out, "err": attempt.script_err}
    there = {stream: path for stream, path in files.items() if exists(path)}
    both = len(there) == 1  # streams in one file, which is then the one of any stream
    return [Source(attempt.number, None, path) for stream, path in there.items() if both or stream in streams]


def is_stamped(line: bytes) -> bool:
    """Whether the line starts with a task's timestamp."""
    # The slice spares most other lines the pattern.
    return line[23:25] == b"Z " and _OURS.match(line) is not None


def without_stamp(line: bytes) -> bytes:
    return line[LENGTH:] if is_stamped(line) else line


def time_of(line: bytes) -> float | None:
    """The timestamp at the start of a line in seconds since the epoch, or None."""
    if line[23:25] == b"Z " and line[19:20] == b"." and line[20:23].isdigit():
        try:
            return _seconds(line[:19], b"Z") + int(line[20:23]) / 1000
        except ValueError:
            return None
    if line[4:5] not in (b"-", b"/") and line[5:6] not in (b"-", b"/"):  # quick exit for most lines
        return None
    match = _OTHERS.match(line)
    if match is None:
        return None
    try:
        whole = _seconds(match["second"], match["zone"])
    except (ValueError, OverflowError):  # e.g. May 40
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


# Collapse identical lines of several ranks into one.


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


_MOST_BYTES = 2**17  # at either end of a file: many ranks may share it
_BETWEEN_CLOCKS_SECONDS = 60.0  # between the clocks of a node and of the controller
_STARTED_AGAIN = frozenset({EndedBy.PREEMPTION, EndedBy.REQUEUE, EndedBy.NODE_FAILURE})
_SLURMS = re.compile(r"(?:slurmstepd|srun)[\w.-]*: ")


@dataclass(frozen=True)
class JobOutput:
    """The lines of a job's files. `printed` are those of stdout, if stderr has a file of its own.

    `changed`: when a file last grew, by the file server's clock; `unknown`: files that could not be read, and why.
    """

    lines: tuple[str, ...] = ()
    printed: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()
    changed: float | None = None
    unknown: tuple[str, ...] = ()

    @property
    def is_mixed(self) -> bool:
        """Whether stdout and stderr share a file, so that any line may be about progress."""
        return len(self.files) < 2


def read_output(files: Sequence[Path], started: float | None = None) -> JobOutput:
    """Read `files`: one for stdout and stderr, or one for each. `started` is the job's last start, if known."""
    texts = [text_lines(path, _MOST_BYTES, head=True) for path in files]
    unknown = [
        f"{path}: {'no such file on this machine' if text.problem == MISSING else text.problem}"
        for path, text in zip(files, texts, strict=True)
        if text.problem
    ]
    changed = []
    for path in files:
        with suppress(OSError):
            changed.append(status_of(path).st_mtime)
    *printed, lines = [since_start(text.lines, started) for text in texts] or [()]
    newest = max(changed, default=None)
    return JobOutput(lines, printed[0] if printed else (), tuple(files), newest, tuple(unknown))


def since_start(lines: tuple[str, ...], started: float | None) -> tuple[str, ...]:
    """Those of `lines` that were written since `started`; if that is unknown, since a start that Slurm's lines show."""
    for at in range(len(lines) - 1, -1, -1):
        for end in job_ends(lines[at : at + 1]):
            when = time_of(end.at.encode())
            if started is not None and when is not None:
                earlier = when < started - _BETWEEN_CLOCKS_SECONDS
            else:
                later = any(not _SLURMS.match(line) for line in lines[at + 1 :])
                earlier = end.by in _STARTED_AGAIN and later
            if earlier:
                return lines[at + 1 :]
    return lines
