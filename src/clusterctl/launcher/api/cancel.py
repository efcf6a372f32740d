"""Cancel runs, whether pending or running."""

from __future__ import annotations

import errno
import os
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.launcher.observe.run_record import make_directory, newer_records
from clusterctl.launcher.observe.status import statuses_of, unknown_job
from clusterctl.launcher.slurm import JobState, Slurm
from clusterctl.shared.errors import ConfigError, SlurmError
from clusterctl.shared.record.files import exists, write_json
from clusterctl.shared.record.ownership import user_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from clusterctl.launcher.observe.state import Status
    from clusterctl.shared.record.layout import RunDir


@dataclass(frozen=True)
class Cancelled:
    """The outcome for each run; `problems` are errors while reading their status."""

    cancelled: tuple[Status, ...]
    ended: tuple[Status, ...]  # had already ended
    problems: tuple[ConfigError | SlurmError, ...]


def cancel(runs: Iterable[RunDir], agreed: Callable[[int], bool] = lambda _: True) -> Cancelled:
    """Cancel those of `runs` that have not ended, if `agreed` returns True for their number.

    Raises ConfigError for a damaged run, SlurmError if Slurm refuses or a run has no job yet.
    """
    found = statuses_of([*runs])
    for problem in found.problems:  # including runs of another user
        if isinstance(problem, ConfigError):
            raise problem
    problems = (*found.problems, *newer_records(status.record for status in found.statuses))
    ended = tuple(status for status in found.statuses if status.state.ended and status.sure)
    alive = tuple(status for status in found.statuses if status not in ended)
    if alive and not agreed(len(alive)):
        return Cancelled((), ended, problems)
    by_controller: dict[tuple[str, str | None], list[Status]] = {}
    for status in alive:
        if status.elsewhere:  # here, its job's id may be another's
            raise unknown_job(status.job_id, status.record.run)
        by_controller.setdefault(status.record.cluster.controller, []).append(status)
    for statuses in by_controller.values():
        _cancel(statuses)
    return Cancelled(alive, ended, problems)


def _cancel(statuses: list[Status]) -> None:
    """Record it in the run directories first: a rank that gets TERM checks there whether the run was cancelled.

    A full disk records nothing, and keeps no job from ending: Slurm's own words then say that it was cancelled.
    A request that Slurm refused, or never got, is withdrawn: the run goes on, and later ends for other reasons.
    """
    for status in statuses:
        if status.job_id is None:
            hint = "it is still being submitted; try again in a moment"
            raise SlurmError(f"{status.record.run.id} has no job yet", hint)
    by = f"{user_name(os.getuid())}@{socket.gethostname()}"
    slurm = Slurm.of(statuses[0].record.cluster)
    noted = [status for status in statuses if not exists(status.record.run.cancel_json)]
    for status in noted:
        try:
            make_directory(status.record.run, status.job_id)
            write_json(status.record.run.cancel_json, {"time": time.time(), "by": by})
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
    try:
        for status in statuses:
            if status.record.allocation is not None:
                from clusterctl.launcher.submission.warm import end_steps  # late: few runs share an allocation

                end_steps(slurm, status.record.run.id, status.record.allocation)
        job_ids = [
            job
            for status in statuses
            if status.record.allocation is None
            for job in (*reversed(status.later), status.successor, status.job_id)
            if job
        ]
        if job_ids:
            slurm.cancel(job_ids)
    except SlurmError as error:
        _withdraw(noted, slurm, error)


def _withdraw(noted: list[Status], slurm: Slurm, error: SlurmError) -> None:
    """Withdraw the requests that have had no effect, and raise an error that names their runs.

    Slurm may have received a request although its answer was lost: then the job is ending.
    """
    slurm.forget()
    try:
        snapshot = slurm.snapshot()
        jobs = None if snapshot.problem else snapshot.jobs
    except SlurmError:
        jobs = None
    alive = []
    for status in noted:
        job = jobs.get(status.job_id or "") if jobs is not None else None
        if jobs is None or (job and not job.state.ended and job.state is not JobState.COMPLETING):
            alive.append(status)
    for status in alive:
        status.record.run.cancel_json.unlink(missing_ok=True)
    if not alive:
        if noted:
            return
        raise error
    first, *others = [status.record.run.id for status in alive]
    names = f"{first} and {len(others)} more" if others else first
    verb = "go" if others else "goes"
    then = f"{names} {verb} on" if jobs is not None else f"{names} {verb} on, unless Slurm got it"
    raise SlurmError(f"{error.message}; not cancelled: {then}", error.hint) from error
