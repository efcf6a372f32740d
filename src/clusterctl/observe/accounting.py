"""The end of a job in Slurm's accounting, queried once per run and cached in its directory.

The accounting database is shared by the whole site, and many sites have none: a failed query is repeated after an hour.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from clusterctl.errors import SlurmError
from clusterctl.runs.fields import read_fields
from clusterctl.runs.files import write_json
from clusterctl.slurm.accounting import Accounted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.runs.fields import Fields
    from clusterctl.runs.layout import RunDir

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
        known, asked_at = _kept(run, job_id)
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
        kept = [asdict(line) for line in found.get(run, ())]
        with suppress(OSError):  # another user's run, or a full disk
            write_json(run.accounting_json, {"time": clock(), "job_id": job_id, "lines": kept})
    return found


def _kept(run: RunDir, job_id: str) -> tuple[tuple[Accounted, ...], float]:
    """The cached end of this job, and when it was queried; nothing if the cache is for an older job."""
    record = read_fields(run.accounting_json)
    if record.text("job_id") != job_id:
        return (), 0.0
    lines = tuple(_line(line) for line in record.tables("lines"))
    return lines if any(line.ended for line in lines) else (), record.moment("time") or 0.0


def _line(fields: Fields) -> Accounted:
    step, state, by, nodes = map(fields.text, ("step", "state", "by", "nodes"))
    return Accounted(step, state, by, fields.whole("exit_code") or 0, fields.whole("signal") or 0, nodes)
