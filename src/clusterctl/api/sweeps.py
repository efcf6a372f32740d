"""`Sweep`: the runs of one sweep together, as a value to ask and to act on."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.api.calls import works_elsewhere
from clusterctl.api.run import Run
from clusterctl.config import chosen_runs_folder
from clusterctl.errors import ClusterctlError, NotFoundError, UsageError, WaitTimedOut
from clusterctl.observe.status import report
from clusterctl.observe.sweep_summary import SweepSummary, summarise
from clusterctl.observe.sweeps import read_sweep, sweep_named, values_of
from clusterctl.runs.layout import SweepDir
from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.api.elsewhere import Elsewhere
    from clusterctl.checks.check import Check
    from clusterctl.observe.status import Report

_LOOK_SECONDS = 5.0  # every look reads what changed in all runs that go on


class SweepFailed(ClusterctlError):
    """A sweep that was waited for, of which not every run finished: its `summary`."""

    def __init__(self, sweep: Sweep, summary: SweepSummary) -> None:
        self.summary = summary
        others = sum(count for stage, count in summary.stages.items() if stage is not Stage.FINISHED)
        hint = f"clusterctl status {sweep.id}\nto start those again: clusterctl resume {sweep.id}"
        super().__init__(f"{others} of the {len(summary.statuses)} runs of {sweep.id} did not finish", hint)


@dataclass(frozen=True)
class Sweep:
    """A sweep, by its directory; its runs are ordinary ones."""

    path: Path
    warnings: tuple[Check, ...] = field(default=(), compare=False, repr=False)
    """What the checks before submitting had to say though they let it pass."""
    place: Elsewhere | None = None
    """Where its cluster is another machine: `path` is there."""

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def directory(self) -> SweepDir:
        return SweepDir(self.path)

    @property
    @works_elsewhere()
    def runs(self) -> list[Run]:
        """The runs, by their places. Raises ConfigError for a damaged sweep."""
        return [Run(run.path) for run in read_sweep(self.directory).runs]

    @property
    @works_elsewhere()
    def settings(self) -> list[dict[str, str]]:
        """What each run changes: its values by key, as they were typed. Raises ConfigError for a damaged sweep."""
        return [values_of(row) for row in read_sweep(self.directory).settings]

    @works_elsewhere()
    def status(self, metric: str | None = None) -> SweepSummary:
        """How many runs are where, and which is best so far, by `metric`. Raises ConfigError for a damaged sweep."""
        return self.summary(report(read_sweep(self.directory).runs), metric)

    def summary(self, looked: Report, metric: str | None = None) -> SweepSummary:
        """`status`, from a look at its runs. Raises UsageError for a metric that none of them has."""
        record = read_sweep(self.directory)
        found = summarise(record, looked.statuses, looked.as_of, metric)
        if metric and found.best is None and any(status.metrics for status in looked.statuses):
            known = sorted({name for status in looked.statuses for name in status.metrics})
            raise UsageError(f"no run of {self.id} has logged: {metric}", f"one of {', '.join(known)}")
        return found

    @works_elsewhere(waits=True)
    def wait(self, timeout: float | None = None) -> SweepSummary:
        """Wait until all runs have ended. Raises SweepFailed unless all finished, WaitTimedOut after `timeout` seconds.

        What goes on then is left alone.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            found = self.status()
            if all(status.stage.ended and status.sure for status in found.statuses):
                break
            if deadline is not None and time.monotonic() >= deadline:
                waits = len(found.statuses) - found.ended
                message = f"{waits} runs of {self.id} go on after {timeout:g} s"
                raise WaitTimedOut(message, f"clusterctl status {self.id}")
            left = _LOOK_SECONDS if deadline is None else deadline - time.monotonic()
            time.sleep(max(0.0, min(_LOOK_SECONDS, left)))
        if set(found.stages) != {Stage.FINISHED}:
            raise SweepFailed(self, found)
        return found

    @works_elsewhere(changes=True)
    def cancel(self) -> None:
        """End all runs that go on, with one question to Slurm. Raises SlurmError."""
        from clusterctl.api.cancel import cancel

        cancel(self.runs)

    @works_elsewhere(changes=True)
    def release(self) -> None:
        """Let the runs start, which were submitted with `hold`."""
        from clusterctl.slurm import Slurm

        waiting = [one for one in self.status().statuses if one.stage is Stage.QUEUED and one.job_id is not None]
        if not waiting:
            raise UsageError(f"no run of {self.id} waits to start", f"clusterctl status {self.id}")
        Slurm.of(waiting[0].record.cluster).release([one.job_id for one in waiting if one.job_id])

    @works_elsewhere(changes=True)
    def resume(self, cluster: str | None = None) -> Sweep:
        """Start those runs again that have ended unfinished. See `resume_sweep`."""
        from clusterctl.api.resume_sweep import resume_sweep

        return resume_sweep(self, cluster)


@works_elsewhere()
def find_sweep(name: str, cluster: str | None = None) -> Sweep:
    """The sweep that `name` means: its id, or `@last` and a job's name where its newest submission was a sweep.

    Raises NotFoundError.
    """
    if found := sweep_meant(name, cluster):
        return found
    raise NotFoundError(f"no sweep named: {name}", "see the runs with: clusterctl status")


def sweep_meant(name: str, cluster: str | None = None) -> Sweep | None:
    """`find_sweep`, or None: `name` may be a run's."""
    found = sweep_named(chosen_runs_folder(cluster), name)
    return Sweep(found.path) if found else None
