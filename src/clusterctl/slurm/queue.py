"""What squeue says, parsed at the edge: text with explicit fields, as `--json` changes with every version of Slurm."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from clusterctl.spec.values import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SEPARATOR = "\x1f"
FIELDS = (
    "JobID", "State", "Reason", "NodeList", "SubmitTime", "StartTime", "EndTime", "RestartCnt", "exit_code",
    "TimeLimit", "NumNodes", "Name", "WorkDir",
)  # fmt: skip
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
    submit_time: int | None
    start_time: int | None
    end_time: int | None
    restart_count: int
    exit_code: int | None  # as a shell would say: 128 + signal where a signal ended it
    time_limit: int | None  # seconds; None: unlimited
    node_count: int | None
    name: str
    work_dir: str


@dataclass(frozen=True)
class Snapshot:
    """All jobs of this user at one moment, by job id."""

    jobs: Mapping[str, QueuedJob]
    taken_at: float
    skipped: int = 0  # lines that were none of squeue's

    def in_folder(self, folder: Path) -> QueuedJob | None:
        """The job whose working directory is `folder`: how a run without a job id is found."""
        return next((job for job in self.jobs.values() if job.work_dir == str(folder)), None)


def parse_queue(text: str, taken_at: float) -> Snapshot:
    """Read the output of `SQUEUE`; never raises: a line that squeue did not write is skipped and counted."""
    jobs: dict[str, QueuedJob] = {}
    skipped = 0
    for line in text.split("\n"):
        job = _parse_line(line)
        if job:
            jobs[job.job_id] = job
        elif line.strip():
            skipped += 1
    return Snapshot(jobs, taken_at, skipped)


def _parse_line(line: str) -> QueuedJob | None:
    values = line.split(SEPARATOR)
    if len(values) <= len(FIELDS) or not values[0].isascii() or not values[0].isdigit():
        return None
    job_id, state, reason, nodes, submitted, started, ended, restarts, status, limit, node_count, name = values[:12]
    return QueuedJob(
        job_id=job_id,
        state=_parse_state(state),
        reason="" if reason == "None" else reason,
        nodes=nodes,
        submit_time=_parse_number(submitted),
        start_time=_parse_number(started),
        end_time=_parse_number(ended),
        restart_count=_parse_number(restarts) or 0,
        exit_code=_parse_wait_status(status),
        time_limit=_parse_limit(limit),
        node_count=_parse_number(node_count),
        name=name,
        work_dir=SEPARATOR.join(values[12:-1]),
    )


def _parse_state(text: str) -> JobState:
    try:
        return JobState(text)
    except ValueError:
        return JobState.UNKNOWN


def _parse_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _parse_wait_status(text: str) -> int | None:
    """squeue prints what wait(2) returned: exit code 1 reads 256."""
    status = _parse_number(text)
    if status is None:
        return None
    return 128 + (status & 0x7F) if status & 0x7F else status >> 8 & 0xFF


def _parse_limit(text: str) -> int | None:
    try:
        return parse_seconds(text)
    except ValueError:
        return None  # UNLIMITED, NOT_SET, INVALID
