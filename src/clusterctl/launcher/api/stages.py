"""Submit all stages of a job file, each an ordinary run that waits for earlier ones.

The IDs of these runs have the same suffix, by which later stages are found when an earlier one is resumed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from clusterctl.launcher.api.calls import works_elsewhere
from clusterctl.launcher.api.predecessors import Predecessors
from clusterctl.launcher.api.settings import settings, typed
from clusterctl.launcher.api.submission import Submission, undo
from clusterctl.launcher.api.submit import dry_run, find_waited_for, load, new_suffix, submission_of
from clusterctl.launcher.config import current_folder, runs_folder
from clusterctl.launcher.config.progress import SILENT
from clusterctl.launcher.config.stages import stages_of
from clusterctl.launcher.observe.run_names import run_ids, suffix
from clusterctl.launcher.observe.run_record import Condition, Predecessor, read_record
from clusterctl.launcher.observe.status import report
from clusterctl.launcher.slurm import Slurm
from clusterctl.shared.errors import ClusterctlError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.stages import Stage

if TYPE_CHECKING:
    from clusterctl.launcher.api.predecessors import Named
    from clusterctl.launcher.api.run import Run
    from clusterctl.launcher.api.settings import Overrides
    from clusterctl.launcher.api.submit import DryRun
    from clusterctl.launcher.checks.check import Check
    from clusterctl.launcher.config.progress import ProgressListener

_CONDITIONS = {"after": Condition.FINISHED, "after_any": Condition.ENDED, "after_start": Condition.STARTED}


def stage_names(job: str | os.PathLike[str]) -> list[str]:
    """The stages of `job`; most jobs have none. Raises NotFoundError and ConfigError."""
    return [stage.name for stage in stages_of(os.fspath(job), current_folder())]


def plan_stages(job: str | os.PathLike[str], cluster: str | None = None, *, overrides: Overrides = ()) -> list[DryRun]:
    """What `submit_stages` would submit, in order. Raises what `load` raises."""
    return [dry_run(load(job, cluster, stage=name, overrides=overrides)) for name in stage_names(job)]


@works_elsewhere(changes=True, takes_job=True)
def submit_stages(
    job: str | os.PathLike[str],
    cluster: str | None = None,
    *,
    overrides: Overrides = (),
    hold: bool = False,
    after: Named = (),
    after_any: Named = (),
    after_start: Named = (),
    large_code: bool = False,
    progress: ProgressListener = SILENT,
) -> list[Run]:
    """Submit all stages of `job` and return their runs, in the order of the file.

    The arguments are those of `submit`; `after` and the like apply to stages that wait for no other stage. Everything
    is checked before anything is queued, and nothing starts before all are queued. Raises what `submit` raises.
    """
    from clusterctl.launcher.api.run import Run  # late: not needed for a dry run

    changes = settings(overrides)
    stages = stages_of(os.fspath(job), current_folder())
    resolved = [load(job, cluster, stage=stage.name, overrides=changes) for stage in stages]
    slurm, end = Slurm.of(resolved[0].cluster), new_suffix()
    prepared: dict[str, Submission] = {}
    for stage, one in zip(stages, resolved, strict=True):
        before = tuple(
            Predecessor(prepared[name].runs[0].plan.run.id, _CONDITIONS[condition])
            for condition, names in stage.waits.items()
            for name in names
        )
        prepared[stage.name] = submission = submission_of(
            one,
            slurm,
            [*typed("submit", os.fspath(job), cluster, changes), "--stage", stage.name],
            hold=not before,
            predecessors=None if before else find_waited_for(one, after, after_any, after_start, None),
            large_code=large_code,
            suffix=end,
            progress=progress,
        )
        if before:  # these do not exist yet
            submission.predecessors = Predecessors(before, runs_folder(one.cluster), one.cluster)
            submission.predecessors.check_resources(one.job.resources)
    warnings: list[tuple[Check, ...]] = []
    for submission in prepared.values():
        known = {check for found in warnings for check in found}  # of a project that all stages share
        warnings.append(tuple(check for check in submission.check() if check not in known))
    sent: list[Submission] = []
    try:
        for submission in prepared.values():
            submission.send()
            sent.append(submission)
    except (ClusterctlError, OSError):
        undo(sent)
        raise
    if not hold:
        slurm.release([job_id for submission in sent if submission.hold for job_id in submission.jobs])
    runs = [submission.runs[0] for submission in sent]
    return [Run(run.plan.run.path, found, _job=run.resolved.job) for run, found in zip(runs, warnings, strict=True)]


def resume_later(run: RunDir, progress: ProgressListener = SILENT) -> list[Run]:
    """Submit the later stages again that were cancelled with `run`, which was just resumed."""
    from clusterctl.launcher.api.resume import resume_alone
    from clusterctl.launcher.api.run import Run

    if not read_record(run).stage:
        return []
    end = suffix(run.id)
    found = report(RunDir(run.path.parent / name) for name in run_ids(run.path.parent) if suffix(name) == end)
    waiting = {status.record.run.id: status for status in found.statuses if status.record.stage}
    again: list[Run] = []
    open_runs = {run.id}
    for status in sorted(waiting.values(), key=lambda one: one.record.created):
        needs = {one.run for one in status.record.predecessors}
        if status.stage is Stage.CANCELLED and not status.attempts and needs & open_runs:
            again.append(resume_alone(Run(status.record.run.path), progress=progress))
            open_runs.add(status.record.run.id)
    return again
