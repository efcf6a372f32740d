"""slurm.log, parsed: what Slurm and the batch script wrote about the end of each attempt, or about a start in vain.

All attempts of a run share this log. slurmstepd writes there whenever Slurm ends a job, and never about a job that ends
by itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from clusterctl.observe.lines import last_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_TAIL_BYTES = 16_384
_BEGAN = re.compile(r"=== (?P<number>\d{1,9}) ===$", re.ASCII)  # by launch/batch.sh
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


@dataclass(frozen=True)
class LastLines:
    """What the end of the log contains about an attempt."""

    ended_by: EndedBy | None = None  # None: not by Slurm
    in_vain: str = ""


def read_end(path: Path, attempt: int, job_id: str) -> LastLines:
    """What slurm.log contains about the end of `attempt`, the last one of its run."""
    lines = [line.decode(errors="replace") for line in last_lines(path, _TAIL_BYTES)]
    sections = by_attempt(lines)
    own = sections.get(attempt, () if len(sections) > 1 else sections.get(-1, ()))
    end = next(iter(job_ends(own, job_id)), None)
    return LastLines(end.by if end else None, started_in_vain(own))
