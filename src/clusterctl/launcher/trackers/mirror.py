"""Copies new metrics in a run's files to one tracker, through the interface that every tracker has (`Sink`).

The bookmark is written once the tracker has the points. If the mirror dies in between, they are sent again, and each
tracker drops the steps it already has.

On the first node of a run, `main` does this while the ranks run, and logs to host.log. The batch script closes its
stdin at the end of the attempt, and the rest is then copied within seconds. An unreachable tracker is retried less and
less often, and the missing points are left to `clusterctl track`.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import socket
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from clusterctl.launcher.config.client_data import client_data
from clusterctl.launcher.observe.lines import Growing
from clusterctl.launcher.observe.measurements import measurements_in
from clusterctl.launcher.observe.run_record import read_record
from clusterctl.launcher.observe.status import no_slurm, statuses_of
from clusterctl.shared.errors import ClusterctlError, ConfigError
from clusterctl.shared.record.fields import read_fields
from clusterctl.shared.record.files import write_json
from clusterctl.shared.record.interpreter import adding
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.metrics import Role, metric_of
from clusterctl.shared.record.once import LeaseTaken, leased
from clusterctl.shared.spec import to_record
from clusterctl.shared.spec.keys import leaves_as_written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from clusterctl.launcher.observe.measurements import Measurement
    from clusterctl.launcher.observe.run_record import RunRecord
    from clusterctl.launcher.observe.state import Status
    from clusterctl.shared.record.metrics import Number
    from clusterctl.shared.record.states import State


# The points of a run for a tracker, each once despite restarts, and the tracker's position in them.


class TrackedPoint(NamedTuple):
    """The values measured at one step; time in seconds since the epoch."""

    step: int
    time: float
    values: dict[str, Number]


@dataclass
class Bookmark:
    """A tracker's position in a run: the next byte of an attempt's metrics, and the newest step of each name."""

    attempt: int = 0
    offset: int = 0
    step: int = 0
    steps: dict[str, int] = field(default_factory=dict)
    ended: str = ""  # the final state sent to the tracker

    def take(self, measured: Measurement) -> TrackedPoint | None:
        """The point in a line, without values the tracker has: a restart repeats the steps after its checkpoint."""
        if measured.step is not None:
            self.step = int(measured.step)
        elif "loss" in measured.values:  # a program that logs no steps
            self.step += 1
        new = {
            name: value
            for name, value in measured.values.items()
            if metric_of(name).role is not Role.COUNT and self.step > self.steps.get(name, -1)
        }
        self.steps |= dict.fromkeys(new, self.step)
        return TrackedPoint(self.step, measured.time or 0.0, new) if new else None


def read_bookmark(path: Path) -> Bookmark:
    """The bookmark in a file; the beginning if there is none."""
    fields = read_fields(path)
    steps = {name: int(step) for name, step in fields.table("steps").numbers().items() if type(step) is int}
    numbers = {name: fields.whole(name) or 0 for name in ("attempt", "offset", "step")}
    return Bookmark(**numbers, steps=steps, ended=fields.text("ended"))


def write_bookmark(path: Path, bookmark: Bookmark) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_json(path, asdict(bookmark))


def new_points(run: RunDir, bookmark: Bookmark) -> Iterator[list[TrackedPoint]]:
    """The points from `bookmark` on, in batches; `bookmark` is moved behind each batch."""
    for attempt in run.attempts():
        if attempt.number < bookmark.attempt:
            continue
        if attempt.number > bookmark.attempt:
            bookmark.attempt, bookmark.offset = attempt.number, 0
        for offset, block in Growing(attempt.metrics, bookmark.offset).placed_blocks():
            points = [point for one in measurements_in(block.split(b"\n")) if (point := bookmark.take(one))]
            bookmark.offset = offset + len(block) + 1
            if points:
                yield points


# The interface of a tracker, and its loading.


class Sink(Protocol):
    """One run in one tracker, which stays the same when reopened."""

    def add(self, points: Sequence[TrackedPoint]) -> None:
        """Add points; when this returns, the tracker has them."""

    def finish(self, state: State) -> None:
        """Record how the run ended, and close."""

    def close(self) -> None:
        """Close for now: the run may continue and be reopened."""


def open_sink(name: str, record: RunRecord, bookmark: Bookmark) -> Sink:
    """Open the run of `record` in the tracker `name`. Raises ConfigError if its library is missing."""
    try:
        module = importlib.import_module(f"clusterctl.launcher.trackers.to_{name}")
        sink: Sink = module.open_sink(record, bookmark)
    except ModuleNotFoundError as error:
        missing, package = f"{name} is not installed", {"mlflow": "mlflow-skinny"}.get(name, name)
        if client_data():  # clusterctl alone was uploaded, for the login node's Python
            hint = 'copy from the node, whose Python may have it: `track.where = "node"`'
            raise ConfigError(f"{missing} for {sys.executable} on {socket.gethostname()}", hint) from error
        raise ConfigError(f"{missing} here: no module {error.name}", adding(package)) from error
    return sink


def parameters(record: RunRecord) -> dict[str, str]:
    """The job's settings by key, from its record, where secrets are redacted."""
    leaves = leaves_as_written(to_record(record.job))
    return {".".join(key): str(value) for key, value in leaves if value not in (None, [], {})}


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
        ended = status.state if status and status.state.ended and status.sure else None
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


LOOK_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 300.0  # between two updates while trackers are unreachable
LAST_SECONDS = 8  # for the rest at the end; the batch script kills this process after 10


def main(folder: Path) -> None:
    """Track the run in `folder` until stdin is closed."""
    os.nice(10)  # the ranks come first
    run = RunDir(folder)
    try:
        record = read_record(run)
        while True:
            try:
                with mirrors(record) as opened:
                    return _follow(run, opened)
            except LeaseTaken:  # `clusterctl track --follow`, or an attempt on a node that was lost
                if _over(LOOK_SECONDS):
                    return None
    except (ClusterctlError, OSError) as error:
        _log(error)


def _follow(run: RunDir, opened: list[Mirror]) -> None:
    seconds, reported = LOOK_SECONDS, ""

    def update(status: Status | None = None) -> bool:
        nonlocal reported
        words = "; ".join(map(str, update_all(opened, status)[1]))
        if words not in ("", reported):
            _log(words)
            reported = words
        return not words

    while True:  # the first update imports the libraries, for which there is no time at the end
        seconds = LOOK_SECONDS if update() else min(2 * seconds, LONGEST_PAUSE_SECONDS)
        if _over(seconds):
            break
    statuses = statuses_of([run], no_slurm).statuses  # none for a damaged run
    update(statuses[0] if statuses else None)


def _over(seconds: float) -> bool:
    """Wait; returns whether the attempt has ended. From then on, an alarm limits the remaining time."""
    over = bool(select.select([sys.stdin], [], [], seconds)[0])
    if over:
        signal.alarm(LAST_SECONDS)
    return over


def _log(what: object) -> None:
    print(f"clusterctl[track]: {what}", file=sys.stderr)
