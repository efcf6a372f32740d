"""Continue a run, or the unfinished runs of a sweep, from their last checkpoints, each in its own directory.

A sweep is continued as one array, and may get new runs for additional values.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import clusterctl
from clusterctl.launcher.api.settings import axes_typed, settings, typed
from clusterctl.launcher.api.submitting.predecessors import Predecessors
from clusterctl.launcher.api.submitting.rerun import resolved_from
from clusterctl.launcher.api.submitting.submission import (
    PastJob,
    PlannedRun,
    SentRun,
    Submission,
    SweepPlan,
    rules_of,
)
from clusterctl.launcher.api.submitting.submit import DryRun
from clusterctl.launcher.api.submitting.sweep import SweepJobs, planned, shown_rows
from clusterctl.launcher.checks.data_size import shares
from clusterctl.launcher.checks.job_rules import changed_batch
from clusterctl.launcher.config import load_cluster
from clusterctl.launcher.config.shown import SILENT
from clusterctl.launcher.diagnosis.traces import RunTrace, with_accounting
from clusterctl.launcher.observe.run_names import run_ids, suffix
from clusterctl.launcher.observe.run_record import read_record, read_submission
from clusterctl.launcher.observe.status import statuses_of
from clusterctl.launcher.observe.sweeps import read_sweep
from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.submission.new_run import from_snapshot
from clusterctl.launcher.submission.plan import has_project, make_plan
from clusterctl.launcher.submission.snapshot import kept_code, kept_codes
from clusterctl.shared.errors import ConfigError, SlurmError, UsageError
from clusterctl.shared.record.fields import read_fields
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State
from clusterctl.shared.spec.sweep import combinations, filled, key_of, names_of_program, parse_axis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from clusterctl.launcher.api.settings import Axes, Overrides
    from clusterctl.launcher.checks.surroundings import Check
    from clusterctl.launcher.config import Resolved
    from clusterctl.launcher.config.shown import ProgressListener
    from clusterctl.launcher.observe.state import Status
    from clusterctl.launcher.observe.sweeps import SweepRecord
    from clusterctl.shared.record.layout import SweepDir
    from clusterctl.shared.spec import Cluster
    from clusterctl.shared.spec.sweep import Settings


def resume_alone(
    run: RunDir,
    cluster: str | None = None,
    *,
    overrides: Overrides = (),
    hold: bool = False,
    progress: ProgressListener = SILENT,
) -> SentRun:
    """Start `run` again: see `start.resume`, which also starts the later stages of its job again."""
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
    return DryRun(resolved, make_plan(resolved, run, code.folder, clusterctl.__version__, rules=rules_of(resolved)))


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
    plan = make_plan(resolved, run, code.folder, clusterctl.__version__, rules=rules_of(resolved))
    again = PlannedRun(plan, resolved, still_ended=still_ended)
    one = Submission([again], code, slurm, words, predecessors=predecessors, hold=hold, progress=progress)
    warnings = one.check()
    return (*gone, *warnings, *one.send())


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


def resume_sweep(
    place: SweepDir,
    cluster: str | None = None,
    *,
    axes: Axes = (),
    hold: bool = False,
    progress: ProgressListener = SILENT,
) -> tuple[Check, ...]:
    """Start the unfinished runs of a sweep again: see `Sweep.resume`. Returns the warnings."""
    axes = axes_typed(axes)
    record = read_sweep(place)
    statuses = _known(record)
    again = [one for one in statuses if one.state.ended and one.state is not State.FINISHED]
    rows = _new(record, axes)
    if not again and not rows:
        going = sum(not one.state.ended for one in statuses)
        what = f"{going} runs of {place.id} have not ended" if going else f"all runs of {place.id} have finished"
        raise UsageError(
            f"{what}: nothing to resume", f"for more values: clusterctl resume {place.id} --sweep KEY=VALUES"
        )
    first = (again if record.array else statuses)[0].record  # of an array, others may have no directory yet
    where = load_cluster(cluster) if cluster else first.cluster
    jobs = [resolved_again(one.record.run, where) for one in again]
    resumed = [(one.record.run, has_project(job.job)) for one, job in zip(again, jobs, strict=True)]
    code, *codes = kept_codes([(first.run, has_project(first.job)), *resumed])
    old, rules = [], rules_of(jobs[0]) if jobs else None
    for status, job, kept in zip(again, jobs, codes, strict=True):
        plan = make_plan(job, status.record.run, kept.folder, clusterctl.__version__, rules=rules)
        old.append(PlannedRun(plan, job, still_ended=partial(_still_ended, status), code=kept))
    wanted = SweepJobs(rows, [resolved_again(first.run, where, _as_settings(row, record)) for row in rows], [])
    runs = [*old, *planned(place, wanted, code, len(record.settings))]
    words = [*typed("resume", place.id, cluster, ()), *(word for axis in axes for word in ("--sweep", axis))]
    predecessors = () if any(one.attempts for one in statuses) else first.predecessors  # as for a single run
    waited_for, gone = Predecessors(predecessors, place.path.parents[1], where).without_removed()
    past = read_fields(place.sweep_json).content
    together = Submission(
        runs,
        code,
        Slurm.of(where),
        words,
        from_snapshot(first.run),
        waited_for,
        SweepPlan(
            place,
            {**past, "runs": [[*row] for row in (*record.settings, *shown_rows(wanted))]},
            past,
            record.at_once,
            sorted({one.job_id.partition("_")[0] for one in statuses if one.job_id and not one.state.ended}),
        ),
        hold=hold,
        progress=progress,
    )
    warnings = together.check()
    waited_for.check(runs[0].resolved.job.resources)
    return (*gone, *warnings, *together.send())


def _known(record: SweepRecord) -> tuple[Status, ...]:
    """The status of all runs. Raises ConfigError for a damaged one, SlurmError if it is unknown whether one ended."""
    found = statuses_of(record.runs)
    for problem in found.problems:
        if isinstance(problem, ConfigError):
            raise problem
    for status in found.statuses:
        status.record.require_ours()
        if not status.sure:
            reason = found.problems[0].message if found.problems else "Slurm does not know"
            raise SlurmError(f"unknown whether {status.record.run.id} has ended: {reason}", "try again later")
    return found.statuses


def _still_ended(status: Status) -> PastJob:
    """The ended job, checked while the run is locked; raises UsageError if it was just resumed."""
    run = status.record.run
    if (read_submission(run).job_id or status.job_id) != status.job_id:
        raise UsageError(f"{run.id} has just been resumed", f"clusterctl status {run.id}")
    return PastJob(status.job_id, status.state)


def _new(record: SweepRecord, axes: Iterable[str]) -> list[Settings]:
    """The combinations of `axes` that the sweep has not run yet. Raises UsageError if the keys are different."""
    parsed = [parse_axis(axis) for axis in axes]
    if not parsed:
        return []
    if record.array:
        raise UsageError(
            f"{record.sweep.id} is an array",
            "for more elements, submit the script with another `resources.sbatch.array = VALUE`",
        )
    rows = combinations(parsed, None, 0)
    known = {frozenset(settings) for settings in record.settings}
    if {*map(key_of, rows[0])} != {*record.keys}:
        raise UsageError(f"the sweep varies {', '.join(record.keys)}", "give values for all of these with `axes=`")
    return [row for row in rows if frozenset(row) not in known]


def _as_settings(row: Settings, record: SweepRecord) -> list[str]:
    """The changes of `row` to the job: its keys, and the program with its placeholders filled in."""
    names = names_of_program([row])
    keys = [setting for setting in row if key_of(setting) not in names]
    return [*keys, *(settings({"argv": filled(record.program, row, names)}) if names else [])]
