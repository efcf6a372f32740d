"""Submit a run again: another attempt in the same directory, from its last checkpoint.

As with `submit`, a crash at any point loses no job and submits none twice: the previous records are copied to
`submissions/<n>/`, then run.json is replaced in one rename, and only then is sbatch called.
"""

from __future__ import annotations

import shutil
import time
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import clusterctl
from clusterctl.launcher.api.calls import works_elsewhere
from clusterctl.launcher.api.find import as_run
from clusterctl.launcher.api.predecessors import Predecessors
from clusterctl.launcher.api.settings import settings, typed
from clusterctl.launcher.api.submit import copied
from clusterctl.launcher.api.verify import verify
from clusterctl.launcher.checks.job_rules import changed_batch
from clusterctl.launcher.checks.training_set import shares
from clusterctl.launcher.checks.verify import explained
from clusterctl.launcher.config import load_cluster, resolve_again
from clusterctl.launcher.config.progress import SILENT
from clusterctl.launcher.diagnosis.traces import RunTrace, with_accounting
from clusterctl.launcher.observe.run_record import read_record
from clusterctl.launcher.observe.status import report
from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.submission.adoption import adopt
from clusterctl.launcher.submission.module_archives import link_archives
from clusterctl.launcher.submission.plan import has_project, make_plan
from clusterctl.launcher.submission.sbatch import BatchJob, SlurmRefused, call_sbatch
from clusterctl.launcher.submission.script import render
from clusterctl.launcher.submission.snapshot import kept_code, link_code
from clusterctl.shared.errors import ConfigError, SlurmError, UsageError
from clusterctl.shared.record.fields import read_fields
from clusterctl.shared.record.file_systems import clock_ahead
from clusterctl.shared.record.files import read_whole, write_json, write_text
from clusterctl.shared.record.ownership import make_new, make_private
from clusterctl.shared.record.stages import Stage
from clusterctl.shared.spec import to_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from clusterctl.launcher.api.run import Run
    from clusterctl.launcher.api.settings import Overrides
    from clusterctl.launcher.checks.check import Check
    from clusterctl.launcher.config import Resolved
    from clusterctl.launcher.config.progress import ProgressListener
    from clusterctl.launcher.submission.plan import Plan
    from clusterctl.shared.record.layout import RunDir
    from clusterctl.shared.spec import Cluster


class PastJob(NamedTuple):
    """The ended job of a run that is submitted again, and the stage it left the run in."""

    id: str | None
    stage: Stage


_LEASE_SECONDS = 300  # sbatch may take a minute; a process that holds a lease for longer has died


@works_elsewhere(changes=True, restarts=True)
def resume(
    run: Run | str,
    cluster: str | None = None,
    *,
    overrides: Overrides = (),
    hold: bool = False,
    progress: ProgressListener = SILENT,
) -> Run:
    """Start `run`, or the run of that name, again from its last checkpoint: the same run, another attempt.

    It goes to `cluster`, or else to its previous one, with `overrides` applied. Later stages of its job that were
    cancelled with it are submitted again. Raises NotFoundError, UsageError for a run that has not ended or has
    finished, ConfigError with everything that would make it fail, and SlurmError.
    """
    from clusterctl.launcher.api.stages import resume_later

    again = resume_alone(as_run(run, cluster), cluster, overrides=overrides, hold=hold, progress=progress)
    resume_later(again.directory, progress)
    return again


def resume_alone(
    run: Run,
    cluster: str | None = None,
    *,
    overrides: Overrides = (),
    hold: bool = False,
    progress: ProgressListener = SILENT,
) -> Run:
    """`resume`, without the later stages."""
    directory = run.directory
    _ended_job(directory)
    where = load_cluster(cluster) if cluster else read_record(directory).cluster
    changes = settings(overrides)
    resolved = resolved_again(directory, where, changes)
    words = typed("resume", run.id, cluster, changes)
    again = partial(_ended_job, directory)
    before = shares(read_record(directory).job)
    warnings = send(directory, resolved, Slurm.of(where), again, words, hold=hold, progress=progress)
    return replace(run, warnings=(*warnings, *changed_batch(before, shares(resolved.job))))


def resolved_again(run: RunDir, cluster: Cluster, changes: Iterable[str] = ()) -> Resolved:
    """The job of `run` from its record, for another submission. Raises ConfigError."""
    record = read_fields(run.run_json)
    job, origins = record.table("job").content, record.table("origins").named_texts()
    return resolve_again(job, origins, cluster, changes, run_json=run.run_json)


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

    `still_ended` is called while the run is locked against other processes; it returns the ended job, or
    raises an error if the run must not be resumed. Raises ConfigError with all failed checks, SlurmError if sbatch
    refuses: everything is then as before.
    """
    sbatch = slurm.path_of("sbatch")
    code = kept_code(run, project=has_project(resolved.job))
    never_began = not run.attempts()  # a run that has started does not wait again
    waited_for = read_record(run).predecessors if never_began else ()
    predecessors, gone = Predecessors(waited_for, run.path.parent, resolved.cluster).without_removed()
    predecessors.check(resolved.job.resources)
    plan = make_plan(resolved, run, code.folder, clusterctl.__version__)
    warnings = verify(plan, resolved, slurm, progress, code)
    archives = copied(code, plan, progress)
    waiting = predecessors.options()

    def call(waiting: Sequence[str]) -> str:
        return call_sbatch(BatchJob.of(plan), [sbatch, *(["--hold"] if hold else []), *waiting], slurm.environment)

    with renewed(plan, resolved, code.folder, archives, still_ended, words):
        try:
            job_id = predecessors.submitted(call, waiting)
        except SlurmRefused as refused:
            raise explained(refused, resolved, slurm) from refused
        adopt(run, job_id)
    return (*gone, *warnings)


@contextmanager
def renewed(
    plan: Plan,
    resolved: Resolved,
    code: Path,
    archives: Mapping[Path, Path],
    still_ended: Callable[[], PastJob],
    words: Sequence[str],
) -> Iterator[None]:
    """Lock the run and update its directory to `plan` with the snapshot `code`; restored if Slurm refuses."""
    run, code_before = plan.run, plan.run.snapshot
    with _lease(run):
        past_job = still_ended()
        past = _archive(run)
        try:
            link_code(run, code)
            link_archives(run, archives)
            write_text(run.script, render(plan), mode=0o700)
            write_json(run.run_json, _record(run, resolved, past_job, words))
            for path in (run.cancel_json, run.submission_json, run.accounting_json):
                path.unlink(missing_ok=True)
            yield
        except (SlurmRefused, ConfigError, OSError):
            _restore(run, past)
            link_code(run, code_before)
            raise


def _ended_job(run: RunDir) -> PastJob:
    """The run's ended job; raises an error if the run must not be resumed."""
    found = report([run])
    for problem in found.problems:
        if isinstance(problem, ConfigError):
            raise problem
    (status,) = found.statuses
    status.record.require_ours()
    if status.stage is Stage.FINISHED:
        raise UsageError(f"{run.id} has finished: nothing to resume", "submit the job again")
    if not status.sure:
        reason = found.problems[0].message if found.problems else "Slurm does not know"
        raise SlurmError(f"unknown whether {run.id} has ended: {reason}", "try again when Slurm answers")
    if not status.stage.ended:
        raise UsageError(f"{run.id} has not ended: {status.stage}", f"clusterctl cancel {run.id}")
    if status.attempt and status.attempt.exit_code is None:  # only Slurm knows how it ended, and soon forgets it
        with_accounting(RunTrace(status, found.as_of), Slurm.of)
    return PastJob(status.job_id, status.stage)


def _record(run: RunDir, resolved: Resolved, past_job: PastJob, words: Sequence[str]) -> dict[str, Any]:
    """run.json with the current job, and the earlier submissions."""
    record = read_fields(run.run_json)
    attempts = run.attempts()
    note = {
        "time": time.time(),
        "attempts": attempts[-1].number + 1 if attempts else 0,
        "job_id": past_job.id,
        "stage": past_job.stage.value,  # of the run before
        "argv": resolved.secrets.hide_typed(words),
    }
    return {
        **record.content,
        "job": to_record(resolved.secrets.hide_in(resolved.job)),
        "cluster": to_record(resolved.secrets.hide_in(resolved.cluster)),
        "origins": resolved.origins,
        "resumes": [*(one.content for one in record.tables("resumes")), note],
    }


def _archived(run: RunDir) -> list[Path]:
    return [run.run_json, run.script, run.submission_json, run.cancel_json, run.accounting_json]


def _archive(run: RunDir) -> Path:
    """Copy the files that a new submission replaces into their own folder."""
    make_private(run.submissions)
    past = run.submissions / str(sum(1 for _ in run.submissions.iterdir()))
    make_new(past)
    for path in _archived(run):
        try:
            content = read_whole(path)
        except (OSError, ValueError):  # missing, or unusable such as a named pipe or a device
            continue
        (past / path.name).write_bytes(content)
        shutil.copystat(path, past / path.name)
    return past


def _restore(run: RunDir, past: Path) -> None:
    for path in _archived(run):
        if (past / path.name).exists():
            (past / path.name).replace(path)
    shutil.rmtree(past)


@contextmanager
def _lease(run: RunDir) -> Iterator[None]:
    """Allow only one process at a time to resume a run."""
    lease = run.path / ".resume"
    with suppress(FileNotFoundError):
        made = lease.stat().st_mtime  # in the file server's time
        if time.time() + (clock_ahead(run.path) or 0.0) - made > _LEASE_SECONDS:
            lease.rename(lease.with_name(f".resume.{time.time_ns()}"))
    try:
        lease.mkdir()
    except FileExistsError:
        hint = f"check its progress: clusterctl status {run.id}"
        raise UsageError(f"{run.id} is already being resumed", hint) from None
    try:
        yield
    finally:
        lease.rmdir()
