"""What the ranks of a run wrote: chosen by attempt, rank and stream, read whole, from the end, or as it grows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.errors import NotFoundError
from clusterctl.observe.lines import Growing, last_lines_offset

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from clusterctl.runs.layout import Attempt, RunDir


@dataclass(frozen=True)
class Selection:
    """Which logs; None takes all. `host`: the batch script's too, where slurmstepd and the container runtime write."""

    attempt: int | None = None
    rank: int | None = None
    streams: tuple[str, ...] = ("out", "err")
    host: bool = False


class Source(NamedTuple):
    """One log file, and whose it is; `rank` is None for the batch script's."""

    attempt: int
    rank: int | None
    path: Path


class Line(NamedTuple):
    """One line of a log, as the bytes that were written, without its newline."""

    source: Source
    content: bytes


def sources(run: RunDir, selection: Selection) -> list[Source]:
    """The log files there are now, in the order of attempts, ranks, streams.

    The batch script's is among them when asked for, and where no rank ever started: it then holds the reason.
    """
    found = []
    for attempt in run.attempts():
        if selection.attempt in (None, attempt.number):
            found += _sources_of(attempt, selection)
    return found


@dataclass
class Logs:
    """The chosen logs of one run, read as they grow. `tail` bounds each file to its last lines at the first look."""

    run: RunDir
    selection: Selection
    tail: int | None = None
    _files: dict[Path, Growing] = field(default_factory=dict, init=False)
    _looked: bool = field(default=False, init=False)

    def read(self, *, ended: bool) -> Iterator[Line]:
        """The lines added since the last call; with `ended`, also last lines that have no newline."""
        for source in sources(self.run, self.selection):
            file = self._files.get(source.path)
            if file is None:
                whole = self.tail is None or self._looked  # a file that comes later is new: all of it
                offset = 0 if whole else last_lines_offset(source.path, self.tail or 0)
                file = self._files[source.path] = Growing(source.path, offset)
            for content in file.read():
                yield Line(source, content)
            for content in file.rest() if ended else ():
                yield Line(source, content)
        self._looked = True


def check_selection(run: RunDir, selection: Selection) -> None:
    """Raise NotFoundError for an attempt or a rank that the run does not have."""
    attempts = [attempt.number for attempt in run.attempts()]
    if selection.attempt is not None and selection.attempt not in attempts:
        raise NotFoundError(f"no attempt {selection.attempt} in {run.id}", f"it has {_numbers(attempts)}")
    ranks = sorted({source.rank for source in sources(run, Selection(selection.attempt)) if source.rank is not None})
    if selection.rank is not None and ranks and selection.rank not in ranks:
        raise NotFoundError(f"no rank {selection.rank} in {run.id}", f"it has {_numbers(ranks)}")


def _sources_of(attempt: Attempt, selection: Selection) -> list[Source]:
    files = [
        Source(attempt.number, rank, path)
        for stream in selection.streams
        for rank, path in attempt.log_files(stream).items()
        if selection.rank in (None, rank)
    ]
    files.sort(key=lambda source: source.rank or 0)  # stable: a rank's streams stay in order
    if attempt.host_log.exists() and (selection.host or not attempt.event_files()):
        files.insert(0, Source(attempt.number, None, attempt.host_log))
    return files


def _numbers(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) if numbers else "none yet"
