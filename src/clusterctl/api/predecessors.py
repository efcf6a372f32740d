"""The runs that a new one waits for: found by name, judged by their directories, handed to sbatch as job numbers.

Slurm forgets a job minutes after its end, and a job that it does not know keeps nobody waiting. So only the numbers of
runs that go on are handed over, and those that have ended are judged here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.errors import ClusterctlError, ConfigError, SlurmError, UsageError
from clusterctl.launch.sbatch import SlurmRefused
from clusterctl.observe.predecessors import Condition, Predecessor, Standing, standing
from clusterctl.observe.runs import find_run
from clusterctl.observe.status import report
from clusterctl.runs.layout import RunDir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from typing import TypeAlias

    from clusterctl.api.run import Run
    from clusterctl.observe.stage import Status
    from clusterctl.spec import Cluster, Resources

    Named: TypeAlias = str | Run | Iterable[str | Run]

FLAGS = {Condition.FINISHED: "--after", Condition.ENDED: "--after-any", Condition.STARTED: "--after-start"}
_OF_SLURM = {Condition.FINISHED: "afterok", Condition.ENDED: "afterany", Condition.STARTED: "after"}


@dataclass(frozen=True)
class Predecessors:
    """What a run on `cluster`, in the folder `runs`, waits for."""

    all: tuple[Predecessor, ...]
    runs: Path
    cluster: Cluster

    @property
    def words(self) -> list[str]:
        """What to type for them."""
        return [word for one in self.all for word in (FLAGS[one.condition], one.run)]

    @property
    def record(self) -> list[dict[str, str]]:
        """As run.json keeps them."""
        return [{"run": one.run, "condition": one.condition.value} for one in self.all]

    def check(self, resources: Resources) -> list[str]:
        """`options`, for a run with these `resources`: before anything is prepared, raise what speaks against them."""
        if self.all and resources.dependency:
            hint = "leave `dependency` out of [resources], or submit without --after"
            raise UsageError("sbatch takes one list of dependencies, and the job file has one of its own", hint)
        return self.options()

    def options(self) -> list[str]:
        """sbatch's options that wait for what has not come yet; none where all has.

        Raises UsageError for a run that cannot be waited for, SlurmError where nobody knows whether it has ended.
        """
        runs = {one.run: RunDir(self.runs / one.run) for one in self.all}
        found = report(runs.values())
        for problem in found.problems:
            if isinstance(problem, ConfigError):
                raise problem
        statuses = {status.record.run.id: status for status in found.statuses}
        silence = found.problems[0].message if found.problems else "Slurm does not say"
        lists = []
        for condition in Condition:
            named = (statuses[one.run] for one in self.all if one.condition is condition)
            numbers = [number for status in named if (number := self._job_of(status, condition, silence))]
            lists += [":".join([_OF_SLURM[condition], *numbers])] if numbers else []
        return [f"--dependency={','.join(lists)}", "--kill-on-invalid-dep=yes"] if lists else []

    def submitted(self, sbatch: Callable[[list[str]], str], asked: list[str]) -> str:
        """What `sbatch` answers to the options `asked`; raises what it raises.

        A run may end between the look at it and sbatch: where Slurm refuses the list, it is made once more.
        """
        try:
            return sbatch(asked)
        except SlurmRefused as refused:
            if not self.all or "dependency" not in refused.words.lower():
                raise
            try:
                now = self.options()
            except ClusterctlError as error:
                raise SlurmRefused("sbatch refused the job", error.message, error.hint) from refused
            if now == asked:
                raise
            return sbatch(now)

    def _job_of(self, status: Status, condition: Condition, silence: str) -> str | None:
        """The number of the job to wait for; None where what is waited for has come."""
        run, record = status.record.run.id, status.record
        if not status.sure:
            raise SlurmError(f"cannot tell whether {run} has ended: {silence}", "try again when Slurm answers")
        found = standing(condition, status)
        if found is Standing.MET:
            return None
        if found is Standing.NEVER:
            hint = f"first: clusterctl resume {run}\na run submitted with --after-any starts however this one ended"
            raise UsageError(f"{run} has not finished: {status.stage}", hint)
        later = f"submit this one when it has ended; see: clusterctl status {run}"
        if record.allocation:
            raise UsageError(f"{run} runs in allocation {record.allocation}: it has no job to wait for", later)
        if record.cluster.controller != self.cluster.controller:
            where = f"on cluster {record.cluster.name}, not {self.cluster.name}"
            raise UsageError(f"{run} runs {where}: Slurm waits only for its own jobs", later)
        if status.job_id is None:
            raise SlurmError(f"{run} has no job number yet", f"try again; see: clusterctl status {run}")
        return status.job_id


def find_predecessors(named: Mapping[Condition, Named], runs: Path, cluster: Cluster) -> Predecessors:
    """The runs that are named, each once. Raises what `find_run` raises."""
    found = (
        Predecessor(find_run(runs, name if isinstance(name, str) else name.id).id, condition)
        for condition, names in named.items()
        for name in _several(names)
    )
    return Predecessors(tuple(dict.fromkeys(found)), runs, cluster)


def _several(names: Named) -> Iterable[str | Run]:
    from clusterctl.api.run import Run

    return (names,) if isinstance(names, str | Run) else names
