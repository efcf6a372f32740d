"""The runs and sweeps that a new run waits for, found by name and passed to sbatch as job IDs.

Slurm forgets a job minutes after its end, and does not wait for unknown jobs. So only the job IDs of runs that have not
ended are passed on, and ended runs are checked here by their directories. A sweep means all its runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from clusterctl.launcher.checks.surroundings import Check, Verdict
from clusterctl.launcher.observe.run_record import Condition, Predecessor, indices_of, read_submission
from clusterctl.launcher.observe.runs import find_run
from clusterctl.launcher.observe.state import Standing, standing
from clusterctl.launcher.observe.status import meant, statuses_of
from clusterctl.launcher.observe.sweeps import runs_of, sweep_named
from clusterctl.launcher.slurm.queue import element_id
from clusterctl.launcher.submission.sbatch import SlurmRefused
from clusterctl.shared.errors import ClusterctlError, ConfigError, SlurmError, UsageError
from clusterctl.shared.record.files import exists
from clusterctl.shared.record.layout import SweepDir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import TypeAlias

    from clusterctl.launcher.observe.state import Status
    from clusterctl.shared.spec import Cluster, Resources


class Submitted(Protocol):
    """A `Run` or a `Sweep`."""

    @property
    def id(self) -> str: ...


if TYPE_CHECKING:
    Names: TypeAlias = str | Submitted | Iterable[str | Submitted]

FLAGS = {Condition.FINISHED: "--after", Condition.ENDED: "--after-any", Condition.STARTED: "--after-start"}
_OF_SLURM = {Condition.FINISHED: "afterok", Condition.ENDED: "afterany", Condition.STARTED: "after"}


@dataclass(frozen=True)
class Predecessors:
    """The predecessors of a run on `cluster`, in the folder `runs`."""

    all: tuple[Predecessor, ...]
    runs: Path
    cluster: Cluster

    @property
    def words(self) -> list[str]:
        """The command-line options for them."""
        return [word for one in self.all for word in (FLAGS[one.condition], one.run)]

    @property
    def record(self) -> list[dict[str, str]]:
        """The form stored in run.json."""
        return [{"run": one.run, "condition": one.condition.value} for one in self.all]

    def without_removed(self) -> tuple[Predecessors, tuple[Check, ...]]:
        """Without the predecessors whose directories were removed, and warnings about these.

        For runs that are submitted again: nothing can show any more whether such a predecessor finished.
        """
        there = [one for one in self.all if exists(self.runs / one.run) or exists(SweepDir.of(self.runs, one.run).path)]
        gone = [one.run for one in self.all if one not in there]
        words = "no longer exists, so this run does not wait for it"
        warnings = tuple(Check("dependency", Verdict.WARN, f"{run}, on which it depended, {words}") for run in gone)
        return replace(self, all=tuple(there)), warnings

    def check(self, resources: Resources) -> list[str]:
        """`options` for a run with these `resources`; called before anything is prepared, to raise errors early."""
        self.check_resources(resources)
        return self.options()

    def check_resources(self, resources: Resources) -> None:
        """Raise UsageError if a run with these `resources` cannot wait for others."""
        if self.all and resources.dependency:
            hint = "remove `dependency` from [resources], or submit without `after=`"
            raise UsageError("cannot combine `after=` with `dependency` in the job file", hint)

    def options(self) -> list[str]:
        """sbatch's options to wait for conditions that are not met yet; empty if all are.

        Raises UsageError for a run that cannot be waited for, SlurmError if it is unknown whether it has ended.
        """
        runs = {one.run: runs_of(self.runs, one.run) for one in self.all}
        found = statuses_of(dict.fromkeys(run for several in runs.values() for run in several))
        for problem in found.problems:
            if isinstance(problem, ConfigError):
                raise problem
        statuses = {status.record.run: status for status in found.statuses}
        silence = found.problems[0].message if found.problems else "Slurm does not know"
        lists = []
        for condition in Condition:
            named = (one for one in self.all if one.condition is condition)
            judged = (self._jobs_of(one, [statuses[run] for run in runs[one.run]], silence) for one in named)
            numbers = [number for jobs in judged for number in jobs]
            lists += [":".join([_OF_SLURM[condition], *numbers])] if numbers else []
        return [f"--dependency={','.join(lists)}", "--kill-on-invalid-dep=yes"] if lists else []

    def options_instead(self, asked: Sequence[str], refused: SlurmRefused) -> list[str]:
        """`options` once more, after sbatch has `refused` the options `asked`: a run may have ended before the call.

        Raises `refused` unless its dependencies were the reason and have changed.
        """
        if not self.all or "dependency" not in refused.words.lower():
            raise refused
        try:
            now = self.options()
        except ClusterctlError as error:
            raise SlurmRefused("sbatch refused the job", error.message, error.hint) from refused
        if now == [*asked]:
            raise refused
        return now

    def _jobs_of(self, one: Predecessor, statuses: Sequence[Status], silence: str) -> list[str]:
        """The IDs of the jobs of a run or a sweep to wait for; empty if the condition is met."""
        for status in statuses:
            if not status.sure:
                message = f"unknown whether {status.record.run.id} has ended: {silence}"
                raise SlurmError(message, "try again when Slurm answers")
        if never := [status for status in statuses if standing(one.condition, status) is Standing.NEVER]:
            hint = f"first: clusterctl resume {one.run}\nor use `after_any=` to start however it ended"
            if never[0].record.run.id != one.run:  # it is a sweep
                raise UsageError(f"{len(never)} of the {len(statuses)} runs of {one.run} did not finish", hint)
            raise UsageError(f"{one.run} has not finished: {never[0].state}", hint)
        jobs = [
            self._job_of(status, one.condition)
            for status in statuses
            if standing(one.condition, status) is Standing.OPEN
        ]
        # Array IDs in place of their elements keep the list short for sbatch, but not where an element goes on in
        # another job or was resumed in another array: such an array can never finish.
        sweep = SweepDir.of(self.runs, one.run)
        known = {status.job_id for status in statuses if not status.successor}
        whole = set()
        for array in sweep.arrays():
            number = read_submission(array).job_id
            indices = indices_of(array)
            if number and indices and known.issuperset(element_id(number, index) for index in indices):
                whole.add(number)
        numbers = (job.partition("_")[0] for job in jobs)
        return list(
            dict.fromkeys(number if number in whole else job for number, job in zip(numbers, jobs, strict=True))
        )

    def _job_of(self, status: Status, condition: Condition) -> str:
        """The job ID of a run that has not ended, for its end the last one. Raises UsageError if it has none."""
        run, record = status.record.run.id, status.record
        later = f"submit this one when it has ended; see: clusterctl status {run}"
        if record.allocation:
            raise UsageError(f"{run} runs in allocation {record.allocation}: it has no job to wait for", later)
        if record.cluster.controller != self.cluster.controller:
            where = f"on cluster {record.cluster.name}, not {self.cluster.name}"
            raise UsageError(f"{run} runs {where}: Slurm waits only for its own jobs", later)
        if status.job_id is None:
            raise SlurmError(f"{run} has no job ID yet", f"try again; see: clusterctl status {run}")
        if condition is Condition.STARTED:
            return status.job_id
        return status.later[-1] if status.later else status.successor or status.job_id


def ids_of(named: Names) -> list[str]:
    """The names of the runs and sweeps, given as one or several names or objects."""
    several = named if isinstance(named, Iterable) and not isinstance(named, str) else (named,)
    return [one if isinstance(one, str) else one.id for one in several]


def find_predecessors(named: Mapping[Condition, Iterable[str]], runs: Path, cluster: Cluster) -> Predecessors:
    """The named runs and sweeps, each once. Raises what `find_run` raises."""
    found = (
        Predecessor((sweep_named(runs, name) or find_run(runs, name)).id, condition)
        for condition, names in named.items()
        for name in (meant(runs, name) for name in names)
    )
    return Predecessors(tuple(dict.fromkeys(found)), runs, cluster)
