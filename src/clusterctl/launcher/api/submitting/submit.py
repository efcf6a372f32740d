"""Load a job and plan its run, or those of its stages: for Slurm's queue, or for an existing allocation."""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import clusterctl
from clusterctl.launcher.api.remote.operations import suggesting
from clusterctl.launcher.api.settings import program_words, settings
from clusterctl.launcher.api.submitting.submission import PlannedRun, Submission, rules_of, uncopied
from clusterctl.launcher.api.submitting.verify import verify
from clusterctl.launcher.checks.data_size import batches
from clusterctl.launcher.checks.job_rules import GOES_ON, large_batch, restart_rules
from clusterctl.launcher.checks.memory import estimate
from clusterctl.launcher.checks.memory import shown as shown_memory
from clusterctl.launcher.checks.surroundings import Verdict
from clusterctl.launcher.config import current_folder, resolve, resolve_script, runs_folder
from clusterctl.launcher.config import roles as roles_of_job
from clusterctl.launcher.config.client_data import client_data
from clusterctl.launcher.config.clusters import ANY_SLURM, cluster_for
from clusterctl.launcher.config.program import with_options
from clusterctl.launcher.config.resolution import AUTO, check_without_cluster, with_environment
from clusterctl.launcher.config.roles import HasStages as HasStages
from clusterctl.launcher.config.roles import stages_of
from clusterctl.launcher.config.shown import SILENT, Shown
from clusterctl.launcher.config.user_script import find_script, read_script, step_output_only
from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.submission.code_files import LargeCode as LargeCode
from clusterctl.launcher.submission.new_run import Earlier, from_earlier, from_project
from clusterctl.launcher.submission.plan import Programs, has_project, make_plan
from clusterctl.launcher.submission.sbatch import test_only
from clusterctl.launcher.submission.script import render
from clusterctl.launcher.submission.snapshot import find_code
from clusterctl.launcher.submission.warm import check_fits, find_allocation, image_stamp, warmed
from clusterctl.shared.errors import UsageError
from clusterctl.shared.node.launch_command import shown
from clusterctl.shared.record.layout import RunDir, code_folder
from clusterctl.shared.spec import PROFILED_STEPS, LoopTrain
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterctl.launcher.api.settings import Overrides, Program
    from clusterctl.launcher.api.submitting.predecessors import Names, Predecessors
    from clusterctl.launcher.checks.surroundings import Check, Estimate
    from clusterctl.launcher.config import Resolved
    from clusterctl.launcher.config.shown import ProgressListener
    from clusterctl.launcher.slurm.queue import Allocation
    from clusterctl.launcher.submission.plan import Plan
    from clusterctl.launcher.submission.snapshot import Code
    from clusterctl.shared.spec import Batches
    from clusterctl.shared.spec.keys import Difference


class HasArray(UsageError):
    """A single run was requested of a batch script with an array."""


@suggesting
def load(
    job: str | os.PathLike[str] | None = None,
    cluster: str | None = None,
    *,
    stage: str | None = None,
    program: Program = (),
    overrides: Overrides = (),
    profile: bool = False,
) -> Resolved:
    """`job` resolved for `cluster`: every value validated and with its origin.

    `job` is a name, or the path of a TOML file or of a batch script. `program`, such as `["python", "train.py"]`, runs
    instead of the job's own, or without a job; of a batch script it is the arguments. `stage` selects a stage of a job
    with stages. The default of `cluster` is CLUSTERCTL_CLUSTER, then the one in your configuration, then `local`, this
    machine. `overrides` are values by key, or `KEY=VALUE` as for --set. `profile` traces some steps on every rank.
    Raises NotFoundError, and ConfigError with all problems.
    """
    name, words, changes = None if job is None else os.fspath(job), tuple(program_words(program)), settings(overrides)
    if name and (path := find_script(name, current_folder())):
        if stage or profile:
            given = "`stage=`" if stage else "`profile=`"
            raise UsageError(f"{given} does not apply to a batch script", f"leave it out: clusterctl submit {name}")
        script = read_script(path, name, words)
        sent_from = current_folder() if client_data() else None
        target = cluster_for(cluster, lambda: resolve_script(script, ANY_SLURM, changes, sent_from=sent_from))
        return resolve_script(script, target, changes, sent_from=sent_from)
    target = cluster_for(cluster, lambda: check_without_cluster(name, changes, words, stage))
    resolved = resolve(name, target, changes, program=words, stage=stage)
    if AUTO in resolved.origins.values():
        from clusterctl.launcher.api.submitting.past_runs import with_auto  # late: reads runs

        resolved = with_auto(resolved)
    resolved = with_environment(resolved)
    train = resolved.job.train
    if not profile:
        return resolved
    if not isinstance(train, LoopTrain):
        hint = "let the program record its own trace: torch.profiler.profile(), export_chrome_trace()"
        raise UsageError(f'`profile=`: workload "{resolved.job.workload}" does not use our training loop', hint)
    if train.profile:  # the job names the steps to trace
        return resolved
    traced = replace(resolved.job, train=replace(train, profile=PROFILED_STEPS))
    return replace(resolved, job=traced, origins=resolved.origins | {"train.profile": "--profile"})


@dataclass(frozen=True)
class DryRun(Shown):
    """What `submit` would submit. Nothing was written; Slurm was asked only about runs to wait for, and its rules."""

    resolved: Resolved
    plan: Plan
    earlier: Earlier | None = None
    waiting: tuple[str, ...] = ()  # sbatch's options to wait for other runs, as of now

    @property
    def script(self) -> str:
        """The complete batch script."""
        return render(self.plan)

    @property
    def changes(self) -> tuple[Difference, ...]:
        """The changes of a rerun to the run that it repeats."""
        return self.earlier.changes if self.earlier else ()

    @property
    def command(self) -> str:
        """The command line of sbatch for a batch script of the user's own; empty for any other job."""
        return shlex.join(["sbatch", *self.plan.script.words(self.plan.run)]) if self.plan.script else ""

    @property
    def unseen(self) -> str:
        """Why the ranks of a batch script will not be seen, as far as its text shows; empty if they will."""
        return step_output_only(self.plan.script.script.text) if self.plan.script else ""

    @property
    def programs(self) -> str | None:
        """Where a program finds Python and the like; None for workloads other than your own program."""
        return str(Programs.of(self.plan)) if self.resolved.job.workload == "command" else None

    @property
    def environment(self) -> str:
        """What is or will be in the environment that its lock file asks for; empty without one."""
        return str(self.plan.environment or "")

    @property
    def restarts(self) -> str:
        """How the queue starts the run again at this site; empty if it does not, or if Slurm does not show it."""
        return f"{GOES_ON} {self.plan.queue.words}" if self.plan.queue and self.plan.queue.words else ""

    @property
    def idle(self) -> str:
        """What its spare nodes cost; empty without any."""
        resources = self.resolved.job.resources
        spares, hours = resources.spare_nodes, resources.spare_nodes * resources.time / 3600
        if not spares:
            return ""
        held = f"{plural(spares, 'spare node')} held idle beside {plural(resources.nodes, 'node')}"
        return f"{held}: up to {hours:,.3g} node hours for each job"

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the job, one a line, and what they leave unused; none for a job with a single program."""
        return tuple(map(self.resolved.secrets.hide, roles_of_job.shown(self.resolved.job)))

    @property
    def launcher(self) -> str:
        """What the launcher of a program's workers gets from the job, and the resulting command; empty without one."""
        return self.resolved.secrets.hide(shown(self.resolved.job))

    @property
    def batches(self) -> Batches | None:
        """How training would divide the examples into batches; None for workloads without clusterctl's training."""
        return batches(self.resolved.job)

    @property
    def memory(self) -> Estimate | None:
        """The memory that it needs by formula; None for your own program or model, or if its data is unknown here."""
        return estimate(self.resolved.job)

    @property
    def memory_line(self) -> str:
        """The same for a person, or how to measure it; empty for your own program."""
        return shown_memory(self.resolved.job)

    @property
    def advice(self) -> str:
        """How the request compares with what the job's last runs needed, if that differs; see `past_runs.advice`."""
        from clusterctl.launcher.api.submitting.past_runs import advice

        return advice(self.resolved.job, self.plan.run.path.parent)

    @property
    def warnings(self) -> tuple[Check, ...]:
        """Warnings about the batches and restarts, without further checks."""
        return (*large_batch(self.batches), *self._restart_warnings)

    @property
    def _restart_warnings(self) -> Iterator[Check]:
        return (check for check in restart_rules(self.plan) if check.verdict is Verdict.WARN)

    def verify(self, *, large_code: bool = False) -> tuple[Check, ...]:
        """The warnings. Raises ConfigError or SlurmError with everything that would make `submit` refuse."""
        slurm = Slurm.of(self.resolved.cluster)
        code = self.earlier.code if self.earlier else code_of(self.resolved, large=large_code)
        found = verify([self.plan], [self.resolved], slurm, SILENT, code, build=False)
        return (*found, *self._restart_warnings)

    def ask_slurm(self) -> str:
        """Slurm's message about whether and when it would start (sbatch --test-only). Raises SlurmError."""
        slurm = Slurm.of(self.resolved.cluster)
        return test_only(self.plan, slurm.path_of("sbatch"), slurm.environment)


@suggesting
def plan(
    job: str | os.PathLike[str] | None = None,
    cluster: str | None = None,
    *,
    stage: str | None = None,
    program: Program = (),
    overrides: Overrides = (),
    profile: bool = False,
    in_allocation: str | None = None,
    after: Names = (),
    after_any: Names = (),
    after_start: Names = (),
) -> DryRun:
    """What `submit` would submit with the same arguments. Raises what `load` raises."""
    resolved = load(job, cluster, stage=stage, program=program, overrides=overrides, profile=profile)
    predecessors = find_waited_for(resolved, after, after_any, after_start, in_allocation)
    return dry_run(resolved, in_allocation, predecessors=predecessors)


def dry_run(
    resolved: Resolved,
    in_allocation: str | None = None,
    *,
    predecessors: Predecessors | None = None,
    earlier: Earlier | None = None,
) -> DryRun:
    """`plan` for a resolved job."""
    waiting = tuple(predecessors.check(resolved.job.resources)) if predecessors else ()
    allocation = find_allocation(Slurm.of(resolved.cluster), in_allocation) if in_allocation else None
    runs = _runs(resolved, earlier)
    code = earlier.code.folder if earlier else code_folder(runs) / "snapshot"
    return DryRun(resolved, _planned(resolved, runs, code, allocation), earlier, waiting)


def stage_names(job: str | os.PathLike[str]) -> list[str]:
    """The stages of `job`; most jobs have none. Raises NotFoundError and ConfigError."""
    return [stage.name for stage in stages_of(os.fspath(job), current_folder())]


def plan_stages(job: str | os.PathLike[str], cluster: str | None = None, *, overrides: Overrides = ()) -> list[DryRun]:
    """What `submit_stages` would submit, in order. Raises what `load` raises."""
    return [dry_run(load(job, cluster, stage=name, overrides=overrides)) for name in stage_names(job)]


@dataclass(frozen=True)
class Start:
    """Where and when a run starts: from Slurm's queue, held there, after others; or at once in an allocation."""

    in_allocation: str | None = None
    hold: bool = False
    predecessors: Predecessors | None = None

    def check(self, resolved: Resolved) -> None:
        """Raise UsageError if the run of `resolved` cannot start like this."""
        if self.hold and self.in_allocation:
            raise UsageError("`hold=`: a run in an allocation is not queued", "use only one of these options")
        if script := resolved.script:
            if self.in_allocation:
                hint = "submit it as a job of its own, without `in_allocation=`"
                raise UsageError("`in_allocation=` does not apply to a batch script", hint)
            if self.predecessors and (line := script.asked.get("dependency")):
                hint = f"put the condition into line {line.line} of the script, or remove that line"
                raise UsageError(f"cannot combine `after=` with --dependency in {script.name}", hint)
        if self.predecessors:
            self.predecessors.check(resolved.job.resources)


QUEUED = Start()


def submission_of(
    resolved: Resolved,
    slurm: Slurm,
    words: Sequence[str] = (),
    start: Start = QUEUED,
    *,
    large_code: bool = False,
    earlier: Earlier | None = None,
    suffix: str | None = None,
    progress: ProgressListener = SILENT,
) -> Submission:
    """The submission of one new run; nothing is written yet. `words` are the equivalent command line, for the record.

    With an `earlier` run, its code is used and the new run's directory is beside it. `suffix` ends the new ID.
    """
    start.check(resolved)
    allocation = find_allocation(slurm, start.in_allocation) if start.in_allocation else None
    words = with_options(words, ["--in-allocation", start.in_allocation] if start.in_allocation else [])
    slurm.path_of("srun" if allocation else "sbatch")  # raises if there is none
    if allocation:
        check_fits(resolved.job.resources, allocation)
    code = earlier.code if earlier else code_of(resolved, large=large_code, progress=progress)
    plan = _planned(resolved, _runs(resolved, earlier), code.folder, allocation, suffix)
    origin = from_earlier(earlier) if earlier else from_project(resolved)
    return Submission(
        [PlannedRun(plan, resolved)],
        code,
        slurm,
        words,
        origin,
        start.predecessors,
        allocation=allocation,
        hold=start.hold,
        progress=progress,
    )


def find_waited_for(
    resolved: Resolved,
    after: Names,
    after_any: Names,
    after_start: Names,
    in_allocation: str | None,
) -> Predecessors | None:
    """The runs to wait for. Raises UsageError and NotFoundError."""
    if not (after or after_any or after_start):
        return None
    if in_allocation:
        raise UsageError("`after=`: a run in an allocation is not queued", "use only one of these options")
    # imported late: most submissions need no other run's status
    from clusterctl.launcher.api.submitting.predecessors import find_predecessors, ids_of
    from clusterctl.launcher.observe.run_record import Condition

    named = {
        Condition.FINISHED: ids_of(after),
        Condition.ENDED: ids_of(after_any),
        Condition.STARTED: ids_of(after_start),
    }
    return find_predecessors(named, runs_folder(resolved.cluster), resolved.cluster)


def _runs(resolved: Resolved, earlier: Earlier | None) -> Path:
    return earlier.run.path.parent if earlier else runs_folder(resolved.cluster)


def _planned(
    resolved: Resolved, runs: Path, code: Path, allocation: Allocation | None, suffix: str | None = None
) -> Plan:
    run = RunDir(runs / f"{resolved.job.name}-{suffix or new_suffix()}")
    plan = make_plan(resolved, run, code, clusterctl.__version__, rules=None if allocation else rules_of(resolved))
    return warmed(plan, resolved, allocation, image_stamp(resolved.job.container.image)) if allocation else plan


def new_suffix() -> str:
    """The suffix of a new ID: the time, and random letters.

    Short enough to read aloud, so others may guess it and take the name first. That gains them nothing: a submission
    creates its directory, and is refused where something has the name.
    """
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"


def code_of(resolved: Resolved, *, large: bool = False, progress: ProgressListener = SILENT) -> Code:
    """The current code of the run, and the path of its snapshot."""
    runs = runs_folder(resolved.cluster)
    job = resolved.job
    try:
        project = Path(job.code) if job.code and has_project(job) else None
        if project and (client := client_data()):
            from clusterctl.launcher.submission.sent_code import (
                received,  # late: most submissions are typed on this machine
            )

            return received(runs, project, client, progress)
        return find_code(runs, project, large=large, progress=progress)
    except OSError as error:
        raise uncopied(runs, error) from error
