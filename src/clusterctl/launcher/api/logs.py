"""The logs of one run: filtered, merged by time, and read once or followed.

Its errors (`failures`) are the tracebacks that its ranks recorded or printed, merged if identical.
"""

from __future__ import annotations

import itertools
import re
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from clusterctl.launcher.config.shown import Shown
from clusterctl.launcher.observe.follow import REAL_SOURCES, watch
from clusterctl.launcher.observe.lines import pattern
from clusterctl.launcher.observe.logs import (
    Line,
    Logs,
    Selection,
    check_selection,
    sources,
    time_of,
    without_worker,
    worker_of,
)
from clusterctl.launcher.observe.rank_events import Exited, Raised, last_events
from clusterctl.launcher.observe.run_record import read_record
from clusterctl.launcher.observe.script_runs import unseen_ranks
from clusterctl.shared.errors import NotFoundError, UsageError
from clusterctl.shared.node.launch_command import ACCELERATE, DEEPSPEED, TORCHRUN, launch_of
from clusterctl.shared.record.plain_text import ranges
from clusterctl.shared.spec.values import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from clusterctl.launcher.observe.follow import Sources
    from clusterctl.launcher.observe.logs import Source
    from clusterctl.launcher.observe.run_record import RunRecord
    from clusterctl.launcher.observe.state import Status
    from clusterctl.shared.record.layout import RunDir

# How to make a launcher name the worker of each line.
_TO_NAME = {
    TORCHRUN: "submit with `torchrun --tee 3 ...`",
    ACCELERATE: "submit with `accelerate launch --tee 3 ...`",
    DEEPSPEED: "`deepspeed --enable_each_rank_log FOLDER ...` writes a file for each worker instead",
}
_NO_LAUNCHER = "it has no launcher: each rank has logs of its own, such as `rank=0`"
_IN_SCRIPT = (
    "use `torchrun --tee 3` after `export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[rank${rank}]: '`, "
    "or `mpirun --tag-output`"
)


@dataclass(frozen=True)
class Reading(Shown):
    """The selected lines of a run, merged by time: iterate for the existing lines, `follow` for new ones."""

    record: RunRecord
    selection: Selection
    files: Logs
    takes: Callable[[Line], bool]
    workers: set[int] = field(default_factory=set)  # those named by the lines read so far, if one is selected
    tail: int | None = None  # of a worker's lines, which `files` cannot count

    def __iter__(self) -> Iterator[Line]:
        """Iterate over the lines. Raises NotFoundError for an unknown rank, node, attempt or worker."""
        self._check()
        yield from self._last(filter(self.takes, self.files.read(ended=True)))
        self._check_worker()

    def again(self) -> Reading:
        """The same lines from the beginning, for what must not read those that an iteration will return."""
        return replace(self, files=Logs(self.files.run, self.files.selection, self.files.tail, self.files.since))

    def errors(self) -> list[Failure]:
        """All tracebacks in order; raises like iteration."""

        self._check()
        found = failures(self.files, self.takes)
        self._check_worker()
        return found

    def follow(self, sources: Sources = REAL_SOURCES) -> Iterator[tuple[Status, Iterator[Line]]]:
        """Poll four times a second until the run has ended: yields its status, and the new lines."""
        first, over = True, False
        for status in watch(self.record.run, self.record.cluster, sources):
            over = status.state.ended and status.sure
            added = filter(self.takes, self.files.read(ended=True) if over else self.files.added(sources.clock()))
            yield status, self._last(added) if first else added
            first = False
        if over:
            self._check_worker()

    def _check(self) -> None:
        try:
            check_selection(self.record.run, self.selection)
        except NotFoundError as error:
            rank = self.selection.rank
            if rank is None or launch_of(self.record.job) is None:
                raise
            hint = f"{error.hint}, one for each launcher; for a worker that it started: `worker={rank}`"
            raise NotFoundError(error.message, hint) from None

    def _last(self, lines: Iterator[Line]) -> Iterator[Line]:
        """The last `tail` of `lines` in each file."""
        if self.tail is None:
            return lines
        kept: dict[Source, deque[tuple[int, Line]]] = defaultdict(lambda: deque(maxlen=self.tail))
        for place, line in enumerate(lines):
            kept[line.source].append((place, line))
        return (line for _, line in sorted(itertools.chain(*kept.values()), key=lambda placed: placed[0]))

    def _check_worker(self) -> None:
        """Raise NotFoundError if no line that was read names the selected worker; older lines were skipped."""
        worker, run = self.selection.worker, self.record.run
        if worker is None or worker in self.workers or self.files.since is not None:
            return
        if self.workers:
            raise NotFoundError(f"no line of worker {worker} in {run.id}", f"its lines name {ranges(self.workers)}")
        launch = launch_of(self.record.job)
        hint = _TO_NAME[launch.name] if launch else _IN_SCRIPT if self.record.is_script else _NO_LAUNCHER
        raise NotFoundError(f"no line in {run.id} names its worker", hint)

    @property
    def note(self) -> str:
        """Why a batch script's ranks have no output of their own; empty if they do, or if nothing shows why."""
        return unseen_ranks(self.record)

    @property
    def ranks(self) -> int:
        """The number of ranks that may have written these lines."""
        if self.selection.rank is not None:
            return 1
        every = self.record.job.resources.nodes * self.record.tasks_per_node
        return every if self.selection.ranks is None else len(self.selection.ranks)


class Lines(Shown, list[Line]):
    """The lines of a run on another machine."""


def read_logs(
    run: RunDir,
    selection: Selection,
    tail: int | None = None,
    since: str | float | None = None,
    grep: str | None = None,
) -> Reading:
    """The logs of `run`: see `Run.logs`."""
    from_time = None if isinstance(since, str) else since
    if isinstance(since, str):  # an age, which counts back from now, or a time
        try:
            from_time = time.time() - parse_seconds(since)
        except ValueError:
            from_time = time_of(since.encode())
        if from_time is None:
            hint = 'for example `since="20m"`, or "2026-01-31 12:00:00"'
            raise UsageError(f"`since=` {since}: not an age or a time", hint)
    wanted = expression(grep)
    workers: set[int] = set()

    def takes(line: Line) -> bool:
        if selection.worker is not None:
            if (worker := worker_of(line)) is not None:
                workers.add(worker)
            if worker != selection.worker:
                return False
        return (from_time is None or line.time >= from_time) and (wanted is None or bool(wanted.search(line.text)))

    if selection.worker is None:
        return Reading(read_record(run), selection, Logs(run, selection, tail, from_time), takes)
    return Reading(read_record(run), selection, Logs(run, selection, None, from_time), takes, workers, tail)


def expression(grep: str | None) -> re.Pattern[bytes] | None:
    """The regular expression `grep`, for lines of logs. Raises UsageError."""
    try:
        return re.compile(grep.encode(errors="surrogateescape")) if grep is not None else None
    except re.error as error:
        raise UsageError(f"`grep=` {grep}: {error}", "use Python's regular expressions; \\. is a dot") from None


if TYPE_CHECKING:
    Ends = Mapping[tuple[int, int], Sequence[Raised | Exited]]  # by attempt and rank

_BEGIN = b"Traceback (most recent call last):"
# Python's text between the parts of a chain of exceptions.
_CHAINED = (b"During handling of the above exception", b"The above exception was the direct cause")
_ORIGINAL = b"Original Traceback"  # of a DataLoader's worker, within the message
# Further lines of messages by NCCL and CUDA.
_CONTINUES = (b"nccl", b"Last error:", b"CUDA kernel errors", b"For debugging consider passing", b"Compile with `TORCH")
_FRAME = re.compile(r'^ +File "(?P<file>[^"]*)", line (?P<line>\d+)', re.MULTILINE)


@dataclass
class Failure:
    """One error: its text, its first time and attempt, and all ranks that had it."""

    text: str
    time: float
    attempt: int
    ranks: list[int] = field(default_factory=list)

    @property
    def message(self) -> str:
        """The line that names the exception."""
        return next((line for line in reversed(self.text.splitlines()) if line and not line.startswith(" ")), self.text)


def failures(logs: Logs, takes: Callable[[Line], bool]) -> list[Failure]:
    """The distinct errors in the events and logs of the selected ranks, in order of time.

    From the logs, only those whose first line is accepted by `takes`. Events are those of ranks: a worker has none.
    """
    chosen = sources(logs.run, logs.selection)
    of_ranks = {(source.attempt, source.rank) for source in chosen if source.rank is not None}
    ends: dict[tuple[int, int], list[Raised | Exited]] = {whose: [] for whose in of_ranks}
    for attempt in {attempt for attempt, _ in of_ranks}:
        events, _ = last_events(logs.run.attempt(attempt))
        for rank, of_rank in events.items():
            if (attempt, rank) in ends:
                ends[attempt, rank] = [event for event in of_rank if isinstance(event, Raised | Exited)]
    recorded = [
        Failure((event.traceback or event.message).rstrip(), event.time or 0.0, attempt, [rank])
        for (attempt, rank), of_rank in sorted(ends.items())
        for event in of_rank
        if isinstance(event, Raised) and logs.selection.worker is None
    ]
    found: dict[tuple[int, str, str], Failure] = {}
    for failure in sorted([*recorded, *_printed(logs, chosen, ends, takes)], key=lambda failure: failure.time):
        frames = _FRAME.findall(failure.text)
        place = ":".join(frames[-1]) if frames else ""
        first = found.setdefault((failure.attempt, pattern(failure.message), place), failure)
        if first is not failure:
            first.ranks += failure.ranks
    for failure in found.values():
        failure.ranks = sorted(set(failure.ranks))
    return list(found.values())


def _printed(logs: Logs, chosen: Iterable[Source], ends: Ends, takes: Callable[[Line], bool]) -> Iterator[Failure]:
    """Tracebacks in logs, from their first line to the one that names the exception, including chains."""
    worker = logs.selection.worker
    for source in chosen:
        file = logs.file(source)
        # Lines without a time were printed shortly before the rank's end.
        recorded = ends.get((source.attempt, source.rank)) if source.rank is not None else None
        ended = recorded[0].time if recorded else None
        open_: _Open | None = None
        passed = 0, b""
        for block in file.blocks(ended=True):
            if open_ is None and _BEGIN not in block[1] and worker is None:  # the fast path for most logs
                passed = block
                continue
            deque(file.lines_in(*passed), maxlen=0)  # to get the time of the line before the block
            passed = 0, b""
            for line in file.lines_in(*block):
                if worker is not None and not takes(line):
                    continue
                text = without_worker(line.text)
                if open_ is not None and open_.takes(text):
                    open_.lines.append(text)
                    continue
                if open_ is not None:
                    yield open_.failure(source)
                begins = text.rstrip() == _BEGIN and takes(line)
                open_ = _Open(line.time if line.timed else ended or line.time, [text]) if begins else None
        if open_ is not None:
            yield open_.failure(source)


@dataclass
class _Open:
    """A traceback whose end has not been read yet."""

    time: float
    lines: list[bytes]
    named: bool = False  # after the line that names the exception, only a chain continues

    def takes(self, line: bytes) -> bool:
        if self.named:
            # An empty line may separate the parts of a chain, and a message may have several lines.
            if not line.strip() or line.startswith((*_CHAINED, b" ", b"\t", *_CONTINUES)):
                return True
            if line.startswith(_ORIGINAL):
                self.named = False
                return True
            self.named = line.rstrip() != _BEGIN or not any(part.startswith(_CHAINED) for part in self.lines[-3:])
            return not self.named
        self.named = not line.startswith((b" ", b"\t"))
        return True

    def failure(self, source: Source) -> Failure:
        text = b"\n".join(self.lines).decode(errors="replace").rstrip()
        return Failure(text, self.time, source.attempt, [] if source.rank is None else [source.rank])
