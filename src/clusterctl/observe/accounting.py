"""The end of a job in Slurm's accounting, queried once per run and cached in its directory.

The accounting database is shared by the whole site, and many sites have none: a failed query is repeated after an hour.
What squeue showed of the end is kept there as well, since it forgets a job within minutes.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from clusterctl.errors import SlurmError
from clusterctl.runs.fields import read_fields
from clusterctl.runs.files import write_json
from clusterctl.slurm.accounting import Accounted
from clusterctl.slurm.queue import JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.runs.fields import Fields
    from clusterctl.runs.layout import RunDir
    from clusterctl.slurm import QueuedJob

AGAIN_SECONDS = 3600.0


def accounted(
    jobs: Mapping[RunDir, str],
    ask: Callable[[Sequence[str]], tuple[Accounted, ...]],
    *,
    patient: bool = True,
    clock: Callable[[], float] = time.time,
) -> dict[RunDir, tuple[Accounted, ...]]:
    """The ends of these runs' jobs, with one query for all that are not cached.

    With `patient`, jobs without a result within the last hour are not queried again, and nothing is raised. Otherwise
    raises SlurmError if there is no answer.
    """
    found, missing = {}, {}
    for run, job_id in jobs.items():
        known, asked_at = kept(run, job_id)
        if known:
            found[run] = known
        elif not patient or not 0 <= clock() - asked_at < AGAIN_SECONDS:
            missing[run] = job_id
    if not missing:
        return found
    answer: tuple[Accounted, ...] = ()
    try:
        answer = ask(sorted(set(missing.values())))
    except SlurmError:
        if not patient:
            raise
    for run, job_id in missing.items():
        lines = tuple(line for line in answer if line.job_id == job_id)
        if any(line.ended for line in lines):
            found[run] = lines
        _write(run, job_id, {"time": clock(), "lines": [asdict(line) for line in found.get(run, ())]})
    return found


def note_end(run: RunDir, job: QueuedJob) -> None:
    """Keep the end that squeue shows of a job whose own files do not."""
    if noted_end(run, job.job_id, job.restart_count) is not job.state:
        _write(run, job.job_id, {"shown": job.state.value, "restart_count": job.restart_count})


def noted_end(run: RunDir, job_id: str, restart_count: int) -> JobState | None:
    """The end of this job that squeue has shown, unless Slurm had started it again by then."""
    record = read_fields(run.accounting_json)
    state = record.member("shown", JobState)
    is_of_this = record.text("job_id") == job_id and record.whole("restart_count") == restart_count
    return state if state and state.ended and is_of_this else None


def _write(run: RunDir, job_id: str, news: dict[str, Any]) -> None:
    """Write what is new about this job, and keep the rest."""
    record = read_fields(run.accounting_json)
    before = record.content if record.text("job_id") == job_id else {}
    with suppress(OSError):  # another user's run, or a full disk
        write_json(run.accounting_json, {**before, "job_id": job_id, **news})


def kept(run: RunDir, job_id: str) -> tuple[tuple[Accounted, ...], float]:
    """The cached end of this job, and when it was queried; nothing if the cache is for an older job."""
    record = read_fields(run.accounting_json)
    if record.text("job_id") != job_id:
        return (), 0.0
    lines = tuple(_line(line) for line in record.tables("lines"))
    return lines if any(line.ended for line in lines) else (), record.moment("time") or 0.0


def _line(fields: Fields) -> Accounted:
    step, state, by, nodes = map(fields.text, ("step", "state", "by", "nodes"))
    return Accounted(step, state, by, fields.whole("exit_code") or 0, fields.whole("signal") or 0, nodes)
