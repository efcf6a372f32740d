"""Copies what is new in a run's files to one tracker.

The bookmark is written when the tracker has the points. A mirror that dies in between hands them over once more; each
tracker then drops what it has, by its steps.
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
    """One run and one tracker, opened when there is something to say."""

    name: str
    record: RunRecord
    opener: Callable[[str, RunRecord, Bookmark], Sink] = open_sink
    _sink: Sink | None = field(default=None, init=False)

    def update(self, status: Status | None = None) -> int:
        """Copy new points, and the end of the run if `status` is one; the number of points. Raises ClusterctlError.

        Where points come after the end, as with `resume` or a late file system, the end is copied again after them.
        """
        path = self.record.run.trackers / f"{self.name}.json"
        bookmark, count = read_bookmark(path), 0
        ended = status.stage if status and status.stage.ended and status.sure else None
        try:
            for points in new_points(self.record.run, bookmark):
                self._opened(path).add(points)
                bookmark.ended = ""  # trackers take a run that is opened again for one that goes on
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
        except Exception as error:  # of the library, whatever it is
            self._sink = None
            words = (str(error).strip().splitlines() or [""])[0][:300]
            hint = f"is it up, and are you known there? then again: clusterctl track {self.record.run.id}"
            raise ConfigError(f"{self.name}: {type(error).__name__}: {words}", hint) from error
        return count

    def close(self) -> None:
        if self._sink is not None:
            self._sink.close()

    def _opened(self, path: Path) -> Sink:
        if self._sink is None:  # by the bookmark that was written down, not that of the points in hand
            self._sink = self.opener(self.name, self.record, read_bookmark(path))
        return self._sink


def update_all(opened: Iterable[Mirror], status: Status | None = None) -> tuple[dict[str, int], list[ClusterctlError]]:
    """Tracker -> the points that it got now, and what went wrong. A failing tracker keeps nothing from the others."""
    counts, problems = {}, []
    for mirror in opened:
        try:
            counts[mirror.name] = mirror.update(status)
        except ClusterctlError as error:
            problems.append(error)
    return counts, problems


@contextmanager
def mirrors(record: RunRecord) -> Iterator[list[Mirror]]:
    """One for each tracker of the run, closed after the block. Raises LeaseTaken where another process mirrors it."""
    folder = record.run.trackers
    folder.mkdir(mode=0o700, exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(leased(folder / "lease"))
        opened = [Mirror(name, record) for name in record.job.track.names]
        for mirror in opened:
            stack.callback(mirror.close)
        yield opened
