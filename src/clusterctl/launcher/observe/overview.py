"""The data of a monitor, refreshed repeatedly: the runs, and everything about the selected one."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.launcher.observe.ended_runs import stamp
from clusterctl.launcher.observe.history import History
from clusterctl.launcher.observe.logs import MOST_LOGS, Logs, Selection, collapsed
from clusterctl.launcher.observe.runs import newest_and_total
from clusterctl.launcher.observe.status import statuses_of
from clusterctl.launcher.observe.timeline import TimelineEvent
from clusterctl.launcher.slurm import Slurm
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from clusterctl.launcher.observe.attempt import HostRecord
    from clusterctl.launcher.observe.ended_runs import Stamp
    from clusterctl.launcher.observe.logs import Line
    from clusterctl.launcher.observe.run_record import RunRecord
    from clusterctl.launcher.observe.state import Status
    from clusterctl.launcher.slurm import Snapshot
    from clusterctl.shared.errors import ConfigError, SlurmError
    from clusterctl.shared.record.layout import RunDir
    from clusterctl.shared.spec import Cluster

_LINES = 300  # of the log to keep
_FIRST_LINES = 40  # of each file, at the first read


@dataclass(frozen=True)
class Selected:
    status: Status
    history: History
    log: tuple[Line, ...]
    timeline_events: tuple[TimelineEvent, ...]  # of all attempts, in order of time


@dataclass(frozen=True)
class Scene:
    """Everything at one moment. `snapshots`: Slurm's last answers, one per cluster queried.

    `causes`: why runs failed, by their IDs, for those that were diagnosed.
    """

    as_of: float
    statuses: tuple[Status, ...]
    selected: Selected | None
    problems: tuple[ConfigError | SlurmError, ...] = ()
    snapshots: tuple[Snapshot, ...] = ()
    causes: Mapping[str, str] = field(default_factory=dict)
    older: int = 0  # runs that were not read


@dataclass
class Overview:
    """The newest `count` runs in `folder`, or only the given `runs`."""

    folder: Path
    count: int = 100
    runs: tuple[RunDir, ...] = ()
    slurm_of: Callable[[Cluster], Slurm] = Slurm.of
    clock: Callable[[], float] = time.time
    _ended: dict[RunDir, tuple[Stamp, Status]] = field(default_factory=dict, init=False)
    _snapshots: dict[tuple[str, str | None], Snapshot] = field(default_factory=dict, init=False)
    _closely: _Closely | None = field(default=None, init=False)

    def look(self, selected: str | None = None) -> Scene:
        """The current state of everything; `selected` is a run id, or None for the newest at work, else waiting."""
        runs, total = (self.runs, len(self.runs)) if self.runs else newest_and_total(self.folder, self.count)
        stamps = {run: stamp(run) for run in runs}  # an ended run is read again when its directory changes
        kept = {run: self._ended[run][1] for run in runs if run in self._ended and self._ended[run][0] == stamps[run]}
        found = statuses_of([run for run in runs if run not in kept], self.slurm_of, self.clock)
        fresh = {status.record.run: status for status in found.statuses}
        self._ended = {
            run: (stamps[run], status)
            for run, status in (kept | fresh).items()
            # A lost or preempted run may come back without a change in its files.
            if status.sure and status.state.ended and status.state not in (State.LOST, State.PREEMPTED)
        }
        statuses = tuple(status for run in runs if (status := kept.get(run) or fresh.get(run)))
        if selected is None:
            chosen = min(statuses, key=lambda status: (status.state.ended, status.state is State.QUEUED), default=None)
        else:
            chosen = next((status for status in statuses if status.record.run.id == selected), None)
        self._snapshots |= {controller: snapshot for controller, snapshot in found.snapshots.items() if snapshot}
        closely = None
        if chosen is not None:
            if self._closely is None or self._closely.run != chosen.record.run:
                self._closely = _Closely(chosen.record)
            closely = self._closely.look(chosen)
        snapshots = tuple(self._snapshots.values())
        return Scene(found.as_of, statuses, closely, found.problems, snapshots, older=total - len(runs))


class _Closely:
    def __init__(self, record: RunRecord) -> None:
        self.run = record.run
        self._history = History(self.run)
        many = record.job.resources.nodes * record.tasks_per_node > MOST_LOGS
        self._logs = Logs(self.run, Selection(rank=0 if many else None, host=True), tail=_FIRST_LINES)
        self._lines: deque[Line] = deque(maxlen=_LINES)

    def look(self, status: Status) -> Selected:
        self._history.update(status.attempts)
        self._lines.extend(collapsed(self._logs.read(ended=status.state.ended and status.sure)))
        return Selected(status, self._history, tuple(self._lines), tuple(timeline_events(status, self._history)))


def timeline_events(status: Status, history: History) -> list[TimelineEvent]:
    """The events of a run from submission to end, in order of time."""
    found = [TimelineEvent(status.record.created, None, "submitted")]
    before: HostRecord | None = None
    for number, timeline in history.attempts.items():
        found += timeline.timeline_events
        host = timeline.host
        if host and host.start is not None:
            where = f" on {host.nodes}" if host.nodes else ""
            if before and before.restarting:
                new = [str(one) for one in host.left_out if one not in before.left_out]
                where = f" in the same job, {'; '.join(new) or 'on the same nodes'}"
            began = max(host.start, status.record.created)  # the script records whole seconds
            found.append(TimelineEvent(began, None, f"attempt {number} starts{where}"))
        if host and host.end is not None and host.exit_code is not None:
            text = f"attempt {number} ends: exit code {host.exit_code}"
            found.append(TimelineEvent(host.end, None, text, bad=host.exit_code != 0))
        before = host
    if status.ended is not None:
        bad = status.state not in (State.FINISHED, State.CANCELLED)
        found.append(TimelineEvent(status.ended, None, str(status.state), bad))
    return sorted(found, key=lambda event: event.time)
