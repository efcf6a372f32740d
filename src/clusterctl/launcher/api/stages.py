"""Submit all stages of a job file, each an ordinary run that waits for earlier ones.

The IDs of these runs have the same suffix, by which later stages are found when an earlier one is resumed.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from clusterctl.launcher.api.calls import works_elsewhere
from clusterctl.launcher.api.predecessors import Predecessors
from clusterctl.launcher.api.settings import settings, typed
from clusterctl.launcher.api.submit import dry_run, find_waited_for, load, new_suffix, send
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
    from clusterctl.launcher.config.progress import ProgressListener
    from clusterctl.launcher.config.stages import StageOfJob

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
    changes = settings(overrides)
    stages = stages_of(os.fspath(job), current_folder())
    resolved = [load(job, cluster, stage=stage.name, overrides=changes) for stage in stages]
    for one in resolved:
        dry_run(one).verify(large_code=large_code)
    slurm, end = Slurm.of(resolved[0].cluster), new_suffix()
    runs: dict[str, Run] = {}
    try:
        for stage, one in zip(stages, resolved, strict=True):
            before = _before(stage, runs)
            waited_for = find_waited_for(one, after, after_any, after_start, None) if not before else None
            words = [*typed("submit", os.fspath(job), cluster, changes), "--stage", stage.name]
            runs[stage.name] = send(
                one,
                slurm,
                words,
                hold=not before,
                predecessors=Predecessors(before, runs_folder(one.cluster), one.cluster) if before else waited_for,
                large_code=large_code,
                suffix=end,
                progress=progress,
            )
    except ClusterctlError:
        if jobs := [run.job_id for run in runs.values() if run.job_id]:
            slurm.cancel(jobs)
        for run in runs.values():
            shutil.rmtree(run.path)
        raise
    if not hold:
        held = [runs[stage.name].job_id for stage in stages if not _before(stage, runs)]
        slurm.release([number for number in held if number])
    return [*runs.values()]


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


def _before(stage: StageOfJob, runs: dict[str, Run]) -> tuple[Predecessor, ...]:
    return tuple(
        Predecessor(runs[name].id, _CONDITIONS[condition]) for condition, names in stage.waits.items() for name in names
    )
