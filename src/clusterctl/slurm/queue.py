"""What squeue says, parsed at the edge: text with explicit fields, as `--json` changes with every version of Slurm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.errors import SlurmError

SEPARATOR = "\x1f"
FIELDS = ("JobID", "State", "Reason", "NodeList", "StartTime", "EndTime", "RestartCnt", "WorkDir")
# Every field carries its own suffix: without one, squeue cuts it at 20 columns.
FORMAT = ",".join(f"{field}:{SEPARATOR}" for field in FIELDS)
# `--me` is filtered by the controller, a list of job ids is not: that would load every job of the cluster.
SQUEUE = ("squeue", "--me", "-h", "--states=all", "-O", FORMAT)


class JobState(StrEnum):
    """The states that squeue names, and UNKNOWN for those that a later Slurm may add."""

    PENDING = "PENDING"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    CONFIGURING = "CONFIGURING"
    RUNNING = "RUNNING"
    RESIZING = "RESIZING"
    SIGNALING = "SIGNALING"
    STAGE_OUT = "STAGE_OUT"
    STOPPED = "STOPPED"
    SUSPENDED = "SUSPENDED"
    COMPLETING = "COMPLETING"
    COMPLETED = "COMPLETED"
    BOOT_FAIL = "BOOT_FAIL"
    CANCELLED = "CANCELLED"
    DEADLINE = "DEADLINE"
    FAILED = "FAILED"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    PREEMPTED = "PREEMPTED"
    REVOKED = "REVOKED"
    TIMEOUT = "TIMEOUT"
    UNKNOWN = "UNKNOWN"

    @property
    def waiting(self) -> bool:
        """Not started, or to be started again."""
        return self in _WAITING

    @property
    def ended(self) -> bool:
        return self in _ENDED


_STATES = tuple(JobState)
_WAITING = frozenset(_STATES[: _STATES.index(JobState.CONFIGURING)])
_ENDED = frozenset(_STATES[_STATES.index(JobState.COMPLETED) : _STATES.index(JobState.UNKNOWN)])


@dataclass(frozen=True)
class QueuedJob:
    """One job as squeue shows it. Times are seconds since the epoch; a pending job's `start_time` is an estimate."""

    job_id: str
    state: JobState
    reason: str
    nodes: str
    start_time: int | None
    end_time: int | None
    restart_count: int
    work_dir: str


@dataclass(frozen=True)
class Snapshot:
    """All jobs of this user at one moment, by job id."""

    jobs: Mapping[str, QueuedJob]
    taken_at: float
    skipped: int = 0  # lines that were none of squeue's
    problem: SlurmError | None = None  # why there is no newer one

    def in_folder(self, folder: Path, but_not: frozenset[str] = frozenset()) -> QueuedJob | None:
        """The job whose working directory is `folder`: how a run without a job id is found."""
        found = (job for number, job in self.jobs.items() if number not in but_not)
        return next((job for job in found if job.work_dir == str(folder)), None)


class _Jobs(Mapping[str, QueuedJob]):
    """The jobs of squeue's lines, each parsed when it is asked for: a user may have ten thousand, and few runs."""

    def __init__(self, lines: dict[str, str]) -> None:
        self._lines = lines

    def __getitem__(self, job_id: str) -> QueuedJob:
        return _parse_line(self._lines[job_id])

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)


def parse_queue(text: str, taken_at: float, problem: SlurmError | None = None) -> Snapshot:
    """Read the output of `SQUEUE`; never raises: a line that squeue did not write is skipped and counted."""
    lines: dict[str, str] = {}
    skipped = 0
    for line in text.split("\n"):
        job_id = line.partition(SEPARATOR)[0]
        if job_id.isascii() and job_id.isdigit() and line.count(SEPARATOR) >= len(FIELDS):
            lines[job_id] = line
        elif line.strip():
            skipped += 1
    return Snapshot(_Jobs(lines), taken_at, skipped, problem)


def _parse_line(line: str) -> QueuedJob:
    values = line.split(SEPARATOR)
    job_id, state, reason, nodes, started, ended, restarts = values[:7]
    return QueuedJob(
        job_id=job_id,
        state=parse_state(state),
        reason="" if reason == "None" else reason,
        nodes=nodes,
        start_time=_parse_number(started),
        end_time=_parse_number(ended),
        restart_count=_parse_number(restarts) or 0,
        work_dir=SEPARATOR.join(values[7:-1]),
    )


def parse_state(text: str) -> JobState:
    """The state that Slurm names, in squeue or in sacct."""
    try:
        return JobState(text)
    except ValueError:
        return JobState.UNKNOWN


def _parse_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None
