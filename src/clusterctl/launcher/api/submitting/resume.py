"""Submit a run again: another attempt in the same directory, from its last checkpoint."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import clusterctl
from clusterctl.launcher.api.settings import settings, typed
from clusterctl.launcher.api.submitting.predecessors import Predecessors
from clusterctl.launcher.api.submitting.rerun import resolved_from
from clusterctl.launcher.api.submitting.submission import PastJob, PlannedRun, SentRun, Submission
from clusterctl.launcher.api.submitting.submit import DryRun
from clusterctl.launcher.checks.job_rules import changed_batch
from clusterctl.launcher.checks.training_set import shares
from clusterctl.launcher.config import load_cluster
from clusterctl.launcher.config.progress import SILENT
from clusterctl.launcher.diagnosis.traces import RunTrace, with_accounting
from clusterctl.launcher.observe.run_names import run_ids, suffix
from clusterctl.launcher.observe.run_record import read_record
from clusterctl.launcher.observe.status import statuses_of
from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.submission.plan import has_project, make_plan
from clusterctl.launcher.submission.snapshot import kept_code
from clusterctl.shared.errors import ConfigError, SlurmError, UsageError
from clusterctl.shared.record.fields import read_fields
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from clusterctl.launcher.api.settings import Overrides
    from clusterctl.launcher.checks.check import Check
    from clusterctl.launcher.config import Resolved
    from clusterctl.launcher.config.progress import ProgressListener
    from clusterctl.shared.spec import Cluster


def resume_alone(
    run: RunDir,
    cluster: str | None = None,
    *,
    overrides: Overrides = (),
    hold: bool = False,
    progress: ProgressListener = SILENT,
) -> SentRun:
    """Start `run` again: see `again.resume`, which also starts the later stages of its job again."""
    _ended_job(run)  # an array's element that has ended has a directory
    where = load_cluster(cluster) if cluster else read_record(run).cluster
    changes = settings(overrides)
    resolved = resolved_again(run, where, changes)
    words = typed("resume", run.id, cluster, changes)
    before = shares(read_record(run).job)
    warnings = send(run, resolved, Slurm.of(where), partial(_ended_job, run), words, hold=hold, progress=progress)
    return SentRun(run, (*warnings, *changed_batch(before, shares(resolved.job))), resolved.job)


def plan(run: RunDir, cluster: str | None = None, *, overrides: Overrides = ()) -> DryRun:
    """What `resume_alone` would submit with the same arguments. Raises what it raises, except for results of checks."""
    _ended_job(run)
    where = load_cluster(cluster) if cluster else read_record(run).cluster
    resolved = resolved_again(run, where, settings(overrides))
    code = kept_code(run, project=has_project(resolved.job))
    return DryRun(resolved, make_plan(resolved, run, code.folder, clusterctl.__version__))


def resume_later(run: RunDir, progress: ProgressListener = SILENT) -> list[RunDir]:
    """Submit the later stages again that were cancelled with `run`, which was just resumed."""
    if not read_record(run).stage:
        return []
    end = suffix(run.id)
    found = statuses_of(RunDir(run.path.parent / name) for name in run_ids(run.path.parent) if suffix(name) == end)
    waiting = {status.record.run.id: status for status in found.statuses if status.record.stage}
    again: list[RunDir] = []
    open_runs = {run.id}
    for status in sorted(waiting.values(), key=lambda one: one.record.created):
        needs = {one.run for one in status.record.predecessors}
        if status.state is State.CANCELLED and not status.attempts and needs & open_runs:
            again.append(resume_alone(status.record.run, progress=progress).run)
            open_runs.add(status.record.run.id)
    return again


def resolved_again(run: RunDir, cluster: Cluster, changes: Iterable[str] = ()) -> Resolved:
    """The job of `run` from its record, for another submission. Raises ConfigError."""
    record = read_fields(run.run_json)
    job, origins = record.table("job").content, record.table("origins").named_texts()
    return resolved_from(job, origins, cluster, changes, run)


def send(
    run: RunDir,
    resolved: Resolved,
    slurm: Slurm,
    still_ended: Callable[[], PastJob],
    words: Sequence[str] = (),
    *,
    hold: bool = False,
    progress: ProgressListener = SILENT,
) -> tuple[Check, ...]:
    """Submit `run` as `resolved`, with its original project and the current library; returns the warnings.

    `still_ended` is called while the run is locked (see `PlannedRun`). Raises ConfigError with all failed checks,
    SlurmError if sbatch refuses: everything is then as before.
    """
    slurm.path_of("sbatch")  # raises if there is none
    code = kept_code(run, project=has_project(resolved.job))
    never_began = not run.attempts()  # a run that has started does not wait again
    waited_for = read_record(run).predecessors if never_began else ()
    predecessors, gone = Predecessors(waited_for, run.path.parent, resolved.cluster).without_removed()
    predecessors.check(resolved.job.resources)
    plan = make_plan(resolved, run, code.folder, clusterctl.__version__)
    again = PlannedRun(plan, resolved, still_ended=still_ended)
    one = Submission([again], code, slurm, words, predecessors=predecessors, hold=hold, progress=progress)
    warnings = one.check()
    one.send()
    return (*gone, *warnings)


def _ended_job(run: RunDir) -> PastJob:
    """The run's ended job; raises an error if the run must not be resumed."""
    found = statuses_of([run])
    for problem in found.problems:
        if isinstance(problem, ConfigError):
            raise problem
    (status,) = found.statuses
    status.record.require_ours()
    if status.state is State.FINISHED:
        raise UsageError(f"{run.id} has finished: nothing to resume", "submit the job again")
    if not status.sure:
        reason = found.problems[0].message if found.problems else "Slurm does not know"
        raise SlurmError(f"unknown whether {run.id} has ended: {reason}", "try again when Slurm answers")
    if not status.state.ended:
        raise UsageError(f"{run.id} has not ended: {status.state}", f"clusterctl cancel {run.id}")
    if status.attempt and status.attempt.exit_code is None:  # only Slurm knows how it ended, and soon forgets it
        with_accounting(RunTrace(status, found.as_of), Slurm.of)
    return PastJob(status.job_id, status.state)
