"""slurm.log, parsed: what Slurm and the batch script wrote about the end of each attempt, or about a start in vain.

All attempts of a run share this log. slurmstepd writes there whenever Slurm ends a job, and never about a job that ends
by itself. What neither this log nor the run's other files show may be in Slurm's accounting: `accounted` asks once per
run, and caches the answer in its directory.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from clusterctl.launcher.observe.lines import log_lines
from clusterctl.launcher.slurm.jobs import Accounted
from clusterctl.launcher.slurm.queue import JobState
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.record.fields import read_fields
from clusterctl.shared.record.files import write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from clusterctl.launcher.slurm import QueuedJob
    from clusterctl.shared.record.layout import RunDir


_BEGAN = re.compile(r"=== (?P<number>\d{1,9}) ===$", re.ASCII)  # by launcher/submission/batch.sh
_JOB_ENDED = re.compile(
    r"\*\*\* JOB (?P<job>\d+) ON (?P<node>\S+) CANCELLED AT (?P<at>[\dT:-]+)(?: DUE TO (?P<why>[A-Z ]+))?"
)
# After an attempt has begun, its batch script writes to another file: the line is from a later start.
_IN_VAIN = re.compile(r"clusterctl\[[a-z-]+\]: ")


class EndedBy(StrEnum):
    """Why Slurm ended a job, in slurmstepd's words."""

    CANCELLATION = ""
    TIME_LIMIT = "TIME LIMIT"
    PREEMPTION = "PREEMPTION"
    REQUEUE = "JOB REQUEUE"
    NODE_FAILURE = "NODE FAILURE"
    OTHER = "OTHER"


@dataclass(frozen=True)
class JobEnd:
    """slurmstepd's line about the end of a job: `at` is local time, `words` the reason as written."""

    job: str
    node: str
    at: str
    words: str

    @property
    def by(self) -> EndedBy:
        if not self.words:
            return EndedBy.CANCELLATION
        return next((each for each in EndedBy if each and self.words.startswith(each)), EndedBy.OTHER)


def by_attempt(lines: Iterable[str]) -> dict[int, tuple[str, ...]]:
    """The lines of slurm.log by attempt: those after the number written by its batch script."""
    found: dict[int, list[str]] = {}
    number = -1
    for line in lines:
        if match := _BEGAN.match(line):
            number = int(match["number"])
        else:
            found.setdefault(number, []).append(line)
    return {number: tuple(of_attempt) for number, of_attempt in found.items()}


def job_ends(lines: Sequence[str], job_id: str = "") -> list[JobEnd]:
    """The ends of jobs in `lines`, the last one first; only those of `job_id`, if known.

    A disconnected node may write its line during a later attempt.
    """
    matches = (match for line in reversed(lines) if (match := _JOB_ENDED.search(line)))
    ends = (JobEnd(match["job"], match["node"], match["at"], (match["why"] or "").strip()) for match in matches)
    return [end for end in ends if end.job == (job_id or end.job)]


def started_in_vain(lines: Iterable[str]) -> str:
    """What the batch script wrote when it could not begin another attempt; empty if it began, or never started."""
    return next((line for line in lines if _IN_VAIN.match(line)), "")


def read_end(path: Path, attempt: int, job_id: str) -> tuple[EndedBy | None, str]:
    """Why Slurm ended `attempt`, the last one of its run (None: it did not), and what a later start wrote in vain."""
    sections = by_attempt(log_lines(path).lines)
    own = sections.get(attempt, () if len(sections) > 1 else sections.get(-1, ()))
    end = next(iter(job_ends(own, job_id)), None)
    return end.by if end else None, started_in_vain(own)


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
    lines = []
    for one in record.tables("lines"):
        step, state, by, nodes = map(one.text, ("step", "state", "by", "nodes"))
        lines.append(Accounted(step, state, by, one.whole("exit_code") or 0, one.whole("signal") or 0, nodes))
    return tuple(lines) if any(line.ended for line in lines) else (), record.moment("time") or 0.0
