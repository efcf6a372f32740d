"""`Sweep`: the runs of one sweep, as an object with queries and actions."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.launcher.api.remote.operations import operation
from clusterctl.launcher.api.run import Run, Runs, waited
from clusterctl.launcher.config import chosen_runs_folder
from clusterctl.launcher.config.shown import SILENT, Shown
from clusterctl.launcher.config.suggestions import of_call
from clusterctl.launcher.observe.runs import name_by_job
from clusterctl.launcher.observe.status import statuses_of
from clusterctl.launcher.observe.sweeps import SweepSummary, read_sweep, summarise, sweep_named, values_of
from clusterctl.shared.errors import ClusterctlError, NotFoundError, UsageError, WaitTimedOut
from clusterctl.shared.record.layout import SweepDir
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.launcher.api.remote.cluster import RemoteCluster
    from clusterctl.launcher.api.settings import Axes
    from clusterctl.launcher.checks.surroundings import Check
    from clusterctl.launcher.config.shown import ProgressListener
    from clusterctl.launcher.observe.status import RunStatuses

_LOOK_SECONDS = 5.0  # every check reads the changes of all active runs


class SweepFailed(ClusterctlError):
    """Not all runs of a sweep finished: its `summary`."""

    summary: SweepSummary

    def __init__(self, sweep: Sweep, summary: SweepSummary) -> None:
        self.summary = summary
        others = sum(count for state, count in summary.states.items() if state is not State.FINISHED)
        hint = f"clusterctl status {sweep.id}\nto start those again: clusterctl resume {sweep.id}"
        super().__init__(f"{others} of the {len(summary.statuses)} runs of {sweep.id} did not finish", hint)


@dataclass(frozen=True)
class Sweep(Shown):
    """A sweep, by its directory; its runs are ordinary ones."""

    path: Path
    warnings: tuple[Check, ...] = field(default=(), compare=False, repr=False)
    """Warnings of the checks before submitting."""
    place: RemoteCluster | None = None
    """Set if its cluster is on another machine: `path` is there."""
    _called: str | None = field(default_factory=of_call, init=False, compare=False, repr=False)  # its `cluster=`

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def directory(self) -> SweepDir:
        return SweepDir(self.path)

    @property
    @operation()
    def runs(self) -> Runs:
        """The runs, by index. Raises ConfigError for a damaged sweep."""
        return Runs(Run(run.path) for run in read_sweep(self.directory).runs)

    @property
    @operation()
    def settings(self) -> list[dict[str, str]]:
        """The settings of each run: its values by key, as typed. Raises ConfigError for a damaged sweep."""
        return [values_of(row) for row in read_sweep(self.directory).settings]

    @operation()
    def status(self, metric: str | None = None) -> SweepSummary:
        """The number of runs per state, and the best run so far by `metric`. Raises ConfigError for a damaged sweep."""
        return self.summary(statuses_of(read_sweep(self.directory).runs), metric)

    def summary(self, looked: RunStatuses, metric: str | None = None) -> SweepSummary:
        """`status` from a report on its runs. Raises UsageError for a metric that none of them has logged."""
        record = read_sweep(self.directory)
        found = summarise(record, looked.statuses, looked.as_of, metric)
        if metric and found.best is None and any(status.metrics for status in looked.statuses):
            known = sorted({name for status in looked.statuses for name in status.metrics})
            raise UsageError(f"no run of {self.id} has logged: {metric}", f"one of {', '.join(known)}")
        return found

    def wait(self, timeout: float | None = None, *, progress: bool | None = None) -> SweepSummary:
        """Wait until all runs have ended. Raises SweepFailed unless all finished, WaitTimedOut after `timeout` seconds.

        It does not end any run. `progress` is as for `Run.wait`.
        """
        return waited(self, self._wait, timeout, progress)

    @operation(waits=True)
    def _wait(self, timeout: float | None) -> SweepSummary:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            found = self.status()
            if all(status.state.ended and status.sure for status in found.statuses):
                break
            if deadline is not None and time.monotonic() >= deadline:
                waits = len(found.statuses) - found.ended
                message = f"{waits} runs of {self.id} have not ended after {timeout:g} s"
                raise WaitTimedOut(message, f"clusterctl status {self.id}")
            left = _LOOK_SECONDS if deadline is None else deadline - time.monotonic()
            time.sleep(max(0.0, min(_LOOK_SECONDS, left)))
        if set(found.states) != {State.FINISHED}:
            raise SweepFailed(self, found)
        return found

    @operation(changes=True)
    def cancel(self) -> None:
        """Cancel all runs that have not ended, with one request to Slurm. Raises SlurmError."""
        from clusterctl.launcher.api.cancel import cancel

        cancel(read_sweep(self.directory).runs)

    @operation(changes=True)
    def release(self) -> None:
        """Release the runs, which were submitted with `hold`."""
        from clusterctl.launcher.slurm import Slurm

        waiting = [one for one in self.status().statuses if one.state is State.QUEUED and one.job_id is not None]
        if not waiting:
            raise UsageError(f"no run of {self.id} is waiting to start", f"clusterctl status {self.id}")
        Slurm.of(waiting[0].record.cluster).release([one.job_id for one in waiting if one.job_id])

    @operation(changes=True, restarts=True)
    def resume(
        self,
        cluster: str | None = None,
        *,
        axes: Axes = (),
        hold: bool = False,
        progress: ProgressListener = SILENT,
    ) -> Sweep:
        """Start the runs again that failed, timed out, or were cancelled, preempted or lost.

        `axes` are values as for `clusterctl.sweep`: new combinations become additional runs, with the sweep's original
        code. Raises UsageError if there is nothing to do, ConfigError, and SlurmError.
        """
        from clusterctl.launcher.api.submitting.resume import resume_sweep

        warnings = resume_sweep(self.directory, cluster, axes=axes, hold=hold, progress=progress)
        return Sweep(self.path, warnings)


@operation()
def find_sweep(name: str, cluster: str | None = None) -> Sweep:
    """The sweep that `name` refers to: its ID, or `@last` or a job's name if the newest submission was a sweep.

    Raises NotFoundError.
    """
    if found := sweep_meant(name, cluster):
        return found
    raise NotFoundError(f"no sweep named: {name}", "list runs with: clusterctl status")


def sweep_meant(name: str, cluster: str | None = None) -> Sweep | None:
    """`find_sweep`, or None if `name` is not a sweep."""
    folder = chosen_runs_folder(cluster)
    found = sweep_named(folder, name_by_job(folder, name))
    return Sweep(found.path) if found else None
