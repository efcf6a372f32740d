"""The logs of one run: filtered, merged by time, and read once or followed."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.errors import UsageError
from clusterctl.observe.follow import REAL_SOURCES, watch
from clusterctl.observe.logs import Logs, Selection, check_selection, time_of
from clusterctl.observe.run_record import read_record
from clusterctl.spec.values import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterctl.observe.follow import Sources
    from clusterctl.observe.logs import Line
    from clusterctl.observe.run_record import RunRecord
    from clusterctl.observe.stage import Status
    from clusterctl.observe.tracebacks import Failure
    from clusterctl.runs.layout import RunDir


@dataclass(frozen=True)
class Reading:
    """The selected lines of a run, merged by time: iterate for the existing lines, `follow` for new ones."""

    record: RunRecord
    selection: Selection
    files: Logs
    takes: Callable[[Line], bool]

    def __iter__(self) -> Iterator[Line]:
        """Iterate over the lines. Raises NotFoundError for an unknown rank, node or attempt."""
        check_selection(self.record.run, self.selection)
        return filter(self.takes, self.files.read(ended=True))

    def errors(self) -> list[Failure]:
        """All tracebacks in order; raises like iteration."""
        from clusterctl.observe.tracebacks import failures

        check_selection(self.record.run, self.selection)
        return failures(self.files, self.takes)

    def follow(self, sources: Sources = REAL_SOURCES) -> Iterator[tuple[Status, Iterator[Line]]]:
        """Poll four times a second until the run has ended: yields its status, and the new lines."""
        for status in watch(self.record.run, self.record.cluster, sources):
            over = status.stage.ended and status.sure
            added = self.files.read(ended=True) if over else self.files.added(sources.clock())
            yield status, filter(self.takes, added)

    @property
    def ranks(self) -> int:
        """The number of ranks that may have written these lines."""
        return self.record.job.resources.nodes * self.record.tasks_per_node if self.selection.rank is None else 1


def read_logs(
    run: RunDir,
    selection: Selection,
    tail: int | None = None,
    since: str | float | None = None,
    grep: str | None = None,
) -> Reading:
    """The logs of `run`: see `Run.logs`."""
    from_time = _moment(since, time.time())
    try:
        wanted = re.compile(grep.encode(errors="surrogateescape")) if grep is not None else None
    except re.error as error:
        raise UsageError(f"--grep {grep}: {error}", "use Python's regular expressions; \\. is a dot") from None

    def takes(line: Line) -> bool:
        return (from_time is None or line.time >= from_time) and (wanted is None or bool(wanted.search(line.text)))

    return Reading(read_record(run), selection, Logs(run, selection, tail, from_time), takes)


def _moment(since: str | float | None, now: float) -> float | None:
    """Seconds since the epoch: an age counts back from `now`."""
    if not isinstance(since, str):
        return since
    try:
        return now - parse_seconds(since)
    except ValueError:
        moment = time_of(since.encode())
    if moment is None:
        raise UsageError(f"--since {since}: not an age or a time", 'for example --since 20m, or "2026-01-31 12:00:00"')
    return moment
