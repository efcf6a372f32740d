"""Send from the login node what the runs themselves could not: notifications, and metrics for their trackers."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.launcher.api.find import as_run, query
from clusterctl.launcher.api.remote.operations import suggesting
from clusterctl.launcher.config.shown import Shown
from clusterctl.launcher.notifications.notifier import Notifier
from clusterctl.launcher.notifications.notifier import Outcome as Outcome
from clusterctl.launcher.notifications.notifier import Try as Try
from clusterctl.launcher.observe.run_record import read_record
from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.trackers.mirror import mirrors, update_all
from clusterctl.shared.errors import ClusterctlError, ConfigError, UsageError, reason
from clusterctl.shared.record.once import LeaseTaken

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from clusterctl.launcher.api.find import Query
    from clusterctl.launcher.api.run import Run
    from clusterctl.launcher.trackers.mirror import Mirror


_NEWS_SECONDS = 7 * 86400.0  # runs that ended earlier are ignored


@dataclass(frozen=True)
class Notified(Shown):
    """The attempted messages, and problems with reading runs."""

    tries: tuple[Try, ...]
    problems: tuple[ClusterctlError, ...]


@suggesting
def notify(names: Iterable[str] = (), cluster: str | None = None) -> Notified:
    """Send the due messages for the runs called `names`, or for all: lost runs, and those whose script could not.

    Slurm is asked once for all runs. A message that may have arrived is not sent again. Raises what `find` raises.
    """
    return notify_about(query(names, cluster=cluster))


def notify_about(wanted: Query) -> Notified:
    """Like `notify`; for repeated calls keep `wanted`, which caches ended runs."""
    found = wanted.look()
    notifier = Notifier(dict(os.environ), Slurm.of)
    tries: list[Try] = []
    problems: list[ClusterctlError] = [*found.problems]
    for status in found.statuses:
        if status.ended is not None and found.as_of - status.ended > _NEWS_SECONDS:
            continue
        try:
            tries += notifier.send_pending(status)
        except (ClusterctlError, OSError) as error:  # must not affect the other runs
            run = status.record.run
            problems.append(ConfigError(f"cannot notify about {run.id}: {reason(error)}", f"see: ls -l {run.notified}"))
    return Notified(tuple(tries), tuple(problems))


# Mirror a run to the trackers in its `[track]` table.


_NODE_SECONDS = 15.0  # how long a run's node may keep copying after the run has ended


class Tracking:
    """One run and its trackers; `update` copies new data."""

    def __init__(self, run: Run, mirrors: list[Mirror]) -> None:
        self.run, self._mirrors = run, mirrors
        self.ended = False
        self.problems: list[ClusterctlError] = []  # of the last update

    def update(self) -> dict[str, int]:
        """Tracker -> number of points copied. A tracker that cannot be reached does not affect the others."""
        status = self.run.status()
        self.ended = status.state.ended and status.sure
        counts, self.problems = update_all(self._mirrors, status)
        return counts


@contextmanager
def tracking(name: Run | str, cluster: str | None = None) -> Iterator[Tracking]:
    """Mirror a run for the duration of the block. Raises UsageError without a tracker, or if it is already tracked."""
    run = as_run(name, cluster)
    record = read_record(run.directory)
    record.require_ours()
    if not record.job.track.names:
        hint = "add to the job file, or to your config.toml: [track] with tensorboard, wandb or mlflow"
        raise UsageError(f"{run.id} has no trackers configured", hint)
    deadline = time.monotonic() + _NODE_SECONDS
    with ExitStack() as stack:
        while True:
            try:
                opened = stack.enter_context(mirrors(record))
                break
            except LeaseTaken as error:
                if time.monotonic() > deadline or not run.status().state.ended:
                    raise UsageError(f"{run.id} is already being tracked", "nothing to do") from error
        yield Tracking(run, opened)


class Tracked(Shown, dict[str, int]):
    """Tracker -> number of points copied to it."""


def points_copied(tracker: str, count: int) -> str:
    """The result for one tracker, in words."""
    return f"{tracker}: {f'{count:,} points' if count else 'up to date'}"


@suggesting
def track(run: Run | str, cluster: str | None = None) -> Tracked:
    """Copy new data of `run` to its trackers: tracker -> number of points. Existing points are not changed.

    Raises UsageError if it has no trackers, ConfigError if one of them is not installed or cannot be reached.
    """
    with tracking(run, cluster) as mirrored:
        counts = mirrored.update()
        if mirrored.problems:
            raise mirrored.problems[0]
        return Tracked(counts)
