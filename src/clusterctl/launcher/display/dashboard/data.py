"""The data shown by the open pages, read on request and shared by all of them."""

from __future__ import annotations

import time
from collections import OrderedDict
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, Generic, TypeVar

from clusterctl.launcher.diagnosis.diagnose import diagnose_status
from clusterctl.launcher.display.explanation import Causes, explanation, pause_after, state_of
from clusterctl.launcher.display.report.page import examine, page
from clusterctl.launcher.observe.comparison import Seen, Several, examine_sweep
from clusterctl.launcher.observe.overview import Overview
from clusterctl.launcher.observe.run_names import is_run_id
from clusterctl.launcher.observe.runs import is_written
from clusterctl.launcher.slurm import Slurm
from clusterctl.shared.errors import NotFoundError
from clusterctl.shared.record.files import exists
from clusterctl.shared.record.layout import RunDir, SweepDir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clusterctl.launcher.observe.state import Status
    from clusterctl.launcher.observe.status import RunStatuses
    from clusterctl.shared.spec import Cluster

T = TypeVar("T")
LOOK_SECONDS = 2.0
_SHARE = 0.2  # of the time spent reading, at most, even on a slow file system
_MOST_KEPT = 16  # runs, and sweeps, kept in memory


class Refreshed(Generic[T]):
    """Caches the result of `look` until it is due again; used by one thread at a time."""

    def __init__(
        self,
        look: Callable[[], T],
        clock: Callable[[], float],
        pause: Callable[[float], float] = lambda took: max(LOOK_SECONDS, took / _SHARE),
    ) -> None:
        self._look, self._clock, self._pause = look, clock, pause
        self._lock = Lock()
        self._seen: tuple[T, float] | None = None  # and when to look again

    @contextmanager
    def seen(self) -> Iterator[T]:
        """The newest result. It must not be used after the block."""
        with self._lock:
            if self._seen is None or self._clock() >= self._seen[1]:
                began = self._clock()
                found = self._look()
                now = self._clock()
                self._seen = found, now + self._pause(now - began)
            yield self._seen[0]


class LiveRun:
    """One run with its curves and log (`scene`), and its diagnosis (`why`)."""

    def __init__(self, overview: Overview, clock: Callable[[], float]) -> None:
        self.scene = Refreshed(overview.look, clock)
        self._slurm_of, self._clock = overview.slurm_of, clock
        self._status: Status | None = None
        self._why: tuple[str, Refreshed[tuple[str, ...]]] | None = None  # the state and its diagnosis

    def why(self) -> tuple[str, ...]:
        """The lines of the diagnosis, repeated only when it may have changed; or why the run cannot be read."""
        with self.scene.seen() as scene:
            if scene.selected is None:
                return tuple(problem.text for problem in scene.problems)
            self._status = scene.selected.status
        state = state_of(self._status)
        if self._why is None or self._why[0] != state:
            status = self._status

            def explain() -> tuple[str, ...]:
                assert self._status is not None
                return tuple(explanation(diagnose_status(self._status, self._slurm_of)))

            self._why = state, Refreshed(explain, self._clock, lambda took: pause_after(status, took))
        with self._why[1].seen() as lines:
            return lines


class RecentlyUsed(Generic[T]):
    """A cache of values by name that drops the least recently used ones."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, T] = OrderedDict()
        self._lock = Lock()

    def get(self, name: str, make: Callable[[], T]) -> T:
        with self._lock:
            if name not in self._values:
                self._values[name] = make()
            self._values.move_to_end(name)
            if len(self._values) > _MOST_KEPT:
                self._values.popitem(last=False)
            return self._values[name]


class DashboardData:
    """The runs in `folder`: the list returned by `look`, and each run and sweep requested by a page."""

    def __init__(
        self,
        folder: Path,
        look: Callable[[], RunStatuses],
        slurm_of: Callable[[Cluster], Slurm] = Slurm.of,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.runs, self.causes = Refreshed(look, clock), Causes(folder)
        self._folder, self._slurm_of, self._clock = folder, slurm_of, clock
        self._live, self._sweeps = RecentlyUsed[LiveRun](), RecentlyUsed[Refreshed[Several]]()
        self._reports = RecentlyUsed[Refreshed[str]]()

    def run(self, run_id: str) -> LiveRun:
        """Raises NotFoundError."""

        def live_run() -> LiveRun:
            run = self._directory(run_id)
            return LiveRun(Overview(self._folder, runs=(run,), slurm_of=self._slurm_of), self._clock)

        return self._live.get(run_id, live_run)

    def report(self, run_id: str) -> Refreshed[str]:
        """The report on a run, as a file without links to other files. Raises NotFoundError."""

        def refreshed() -> Refreshed[str]:
            run = self._directory(run_id)
            return Refreshed(lambda: page(examine(run, None, self._slurm_of)), self._clock)

        return self._reports.get(run_id, refreshed)

    def _directory(self, run_id: str) -> RunDir:
        if not is_run_id(run_id) or not is_written(self._folder, run_id):
            raise NotFoundError(f"no run named: {run_id}", "see the runs with: clusterctl status")
        return RunDir(self._folder / run_id)

    def sweep(self, sweep_id: str) -> Refreshed[Several]:
        """Raises NotFoundError."""

        def refreshed() -> Refreshed[Several]:
            sweep, seen = SweepDir.of(self._folder, sweep_id), Seen()
            if not is_run_id(sweep_id) or not exists(sweep.sweep_json):
                raise NotFoundError(f"no sweep named: {sweep_id}", "see the runs with: clusterctl status")
            return Refreshed(lambda: examine_sweep(sweep, None, self._slurm_of, seen=seen), self._clock)

        return self._sweeps.get(sweep_id, refreshed)
