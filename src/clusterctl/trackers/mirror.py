"""Copies new metrics in a run's files to one tracker.

The bookmark is written once the tracker has the points. If the mirror dies in between, they are sent again, and each
tracker drops the steps it already has.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.errors import ClusterctlError, ConfigError
from clusterctl.runs.once import leased
from clusterctl.trackers.points import new_points, read_bookmark, write_bookmark
from clusterctl.trackers.sink import open_sink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from clusterctl.observe.run_record import RunRecord
    from clusterctl.observe.stage import Status
    from clusterctl.trackers.points import Bookmark
    from clusterctl.trackers.sink import Sink


@dataclass
class Mirror:
    """One run and one tracker, opened when there is something to copy."""

    name: str
    record: RunRecord
    opener: Callable[[str, RunRecord, Bookmark], Sink] = open_sink
    _sink: Sink | None = field(default=None, init=False)

    def update(self, status: Status | None = None) -> int:
        """Copy new points and, if `status` has ended, the end; returns the number of points. Raises ClusterctlError.

        If points follow the end, as after `resume` or on a late file system, the end is copied again after them.
        """
        path = self.record.run.trackers / f"{self.name}.json"
        bookmark, count = read_bookmark(path), 0
        ended = status.stage if status and status.stage.ended and status.sure else None
        try:
            for points in new_points(self.record.run, bookmark):
                self._opened(path).add(points)
                bookmark.ended = ""  # trackers consider a reopened run as running
                write_bookmark(path, bookmark)
                count += len(points)
            if (ended or "") != bookmark.ended:
                if ended:
                    self._opened(path).finish(ended)
                    self._sink = None
                bookmark.ended = ended or ""
                write_bookmark(path, bookmark)
        except ClusterctlError:
            raise
        except Exception as error:  # any error of the library
            self._sink = None
            words = (str(error).strip().splitlines() or [""])[0][:300]
            hint = f"check that it is up and you are logged in, then retry: clusterctl track {self.record.run.id}"
            raise ConfigError(f"{self.name}: {type(error).__name__}: {words}", hint) from error
        return count

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()

    def _opened(self, path: Path) -> Sink:
        if self._sink is None:  # from the saved bookmark, not the one of the current points
            self._sink = self.opener(self.name, self.record, read_bookmark(path))
        return self._sink


def update_all(opened: Iterable[Mirror], status: Status | None = None) -> tuple[dict[str, int], list[ClusterctlError]]:
    """Update all; returns tracker -> number of points copied, and errors. A failure does not affect the others."""
    counts, problems = {}, []
    for mirror in opened:
        try:
            counts[mirror.name] = mirror.update(status)
        except ClusterctlError as error:
            problems.append(error)
    return counts, problems


@contextmanager
def mirrors(record: RunRecord) -> Iterator[list[Mirror]]:
    """One mirror per tracker of the run, closed after the block. Raises LeaseTaken if another process has them."""
    folder = record.run.trackers
    folder.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(leased(folder / "lease"))
        opened = [Mirror(name, record) for name in record.job.track.names]
        for mirror in opened:
            stack.callback(mirror.close)
        yield opened
