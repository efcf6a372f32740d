"""Watch one run until it ends: its files several times a second, Slurm when the files have not changed for a while."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.launcher.observe.attempt import RunEvidence, read_evidence
from clusterctl.launcher.observe.run_record import read_record
from clusterctl.launcher.observe.script_runs import note_ends
from clusterctl.launcher.observe.state import judge, settled
from clusterctl.launcher.observe.status import answered
from clusterctl.launcher.observe.telemetry import NodesNow, nodes_now
from clusterctl.launcher.slurm import Slurm
from clusterctl.shared.errors import SlurmError, WaitTimedOut
from clusterctl.shared.record.files import status_of
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clusterctl.launcher.observe.run_record import RunRecord
    from clusterctl.launcher.observe.state import Status
    from clusterctl.launcher.slurm import Snapshot
    from clusterctl.shared.record.layout import RunDir
    from clusterctl.shared.spec import Cluster

LOOK_SECONDS = 0.25
_READ_SECONDS = 2.0  # a file server may report changes late: files are read at least this often
_NODES_SECONDS, _NODES_A_SECOND = 30.0, 16  # between two reads of the nodes' telemetry, one file per node
_LONGEST_PAUSE_SECONDS = 60.0  # between two queries while Slurm does not answer


@dataclass(frozen=True)
class Sources:
    """The dependencies of watching: time and Slurm."""

    slurm_of: Callable[[Cluster], Slurm] = Slurm.of
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


REAL_SOURCES = Sources()


def watch(run: RunDir, cluster: Cluster, sources: Sources = REAL_SOURCES, *, closely: bool = False) -> Iterator[Status]:
    """The status of `run` four times a second, until its end. Raises ConfigError if the run is damaged.

    Metrics are at most two seconds old; with `closely` they are current, and the nodes' state is included.
    """
    files = _Files(read_record(run), closely)
    asking = _Asking(cluster, sources)
    while True:
        status = judge(asking.completed(files.read(sources.clock())), sources.clock())
        yield status
        if status.state.ended and status.sure:
            return
        sources.sleep(LOOK_SECONDS)


def wait(run: RunDir, cluster: Cluster, timeout: float | None, sources: Sources = REAL_SOURCES) -> State:
    """Wait for the end of `run` and return its state; raises WaitTimedOut after `timeout` seconds."""
    deadline = None if timeout is None else sources.clock() + timeout
    state = State.QUEUED
    for status in watch(run, cluster, sources):
        state = status.state
        if deadline is not None and sources.clock() >= deadline and not state.ended:
            message = f"{run.id} is still {state} after {timeout:g} s"
            raise WaitTimedOut(message, f"it continues; check it with: clusterctl status {run.id}")
    return state


@dataclass
class _Files:
    """The evidence in the files, read again when one has changed, at a cost independent of the number of ranks."""

    record: RunRecord
    closely: bool
    _evidence: RunEvidence | None = field(default=None, init=False)
    _stamps: list[tuple[int, ...]] = field(default_factory=list, init=False)
    _read_at: float = field(default=0.0, init=False)
    _nodes: NodesNow = field(default=NodesNow(), init=False)
    _nodes_of: int = field(default=-1, init=False)  # the attempt
    _nodes_at: float = field(default=0.0, init=False)

    def read(self, now: float) -> RunEvidence:
        stamps = [_stamp(path) for path in self._watched()]
        if self._evidence is None or stamps != self._stamps or not 0 <= now - self._read_at < _READ_SECONDS:
            self._stamps, self._read_at = stamps, now
            attempts = self.record.run.attempts() if self.closely else []
            resources = self.record.job.resources
            every = max(_NODES_SECONDS, resources.nodes / _NODES_A_SECOND)  # all nodes are read if the run seems idle
            if attempts and (attempts[-1].number != self._nodes_of or not 0 <= now - self._nodes_at < every):
                self._nodes_of, self._nodes_at = attempts[-1].number, now
                self._nodes = nodes_now(attempts[-1], resources.nodes * self.record.tasks_per_node)
            self._evidence = read_evidence(self.record, self._evidence, self._nodes)
        return self._evidence

    def _watched(self) -> Iterator[Path]:
        """The files and folders that change as the run progresses."""
        run = self.record.run
        yield from (run.finished_json, run.cancel_json, run.submission_json, run.attempts_folder)
        if self._evidence and self._evidence.attempts:
            attempt = run.attempt(self._evidence.attempts[-1].number)
            yield from (attempt.path, attempt.host_json, attempt.marks, attempt.events(0))
            if self.closely:
                yield attempt.metrics


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = status_of(path)
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


@dataclass
class _Asking:
    """When to query Slurm: at once if the files do not show the end, then after they have not changed for a while.

    While a run is training, its files are more recent. An answer is kept until the files change.
    """

    cluster: Cluster
    sources: Sources
    _last: RunEvidence | None = field(default=None, init=False)
    _snapshot: Snapshot | None = field(default=None, init=False)
    _next_question: float = field(default=0.0, init=False)
    _pause: float = field(default=0.0, init=False)

    def completed(self, evidence: RunEvidence) -> RunEvidence:
        now = self.sources.clock()
        if self._last is not None and evidence != self._last:
            self._snapshot = None  # it was about the run as it was
            self._next_question = max(self._next_question, now + self.cluster.polling_floor)
        self._last = evidence
        if settled(evidence) or not evidence.record.is_ours:
            return evidence
        if now >= self._next_question:
            floor = float(self.cluster.polling_floor)
            try:
                self._snapshot = self.sources.slurm_of(self.cluster).snapshot()
            except SlurmError:
                self._snapshot = None
            if self._snapshot and not self._snapshot.problem:
                # It may come from another process, and be some seconds old.
                self._pause = floor
                self._next_question = now + min(floor, max(LOOK_SECONDS, self._snapshot.taken_at + floor - now))
            else:
                self._pause = min(_LONGEST_PAUSE_SECONDS, max(floor, 2 * self._pause))
                self._next_question = now + self._pause
        if self._snapshot is None:
            return evidence
        return note_ends([answered(evidence, self._snapshot)], self.sources.slurm_of)[0]
