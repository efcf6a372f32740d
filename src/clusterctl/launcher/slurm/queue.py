"""Jobs from squeue: text output with explicit fields, since `--json` changes with every version of Slurm.

Also Slurm's names for the elements of job arrays.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from clusterctl.shared.record.plain_text import ranges
from clusterctl.shared.spec.values import parse_limit

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.shared.errors import SlurmError


SEPARATOR = "\x1f"


def columns(fields: Iterable[str]) -> str:
    """The format option of squeue and sinfo; a field without a suffix is truncated to 20 columns."""
    return ",".join(f"{field}:{SEPARATOR}" for field in fields)


# A started element of an array has its own line; pending ones share a line such as `12_[3-9%4]`.
FIELDS = ("JobArrayID", "State", "Reason", "NodeList", "StartTime", "EndTime", "RestartCnt", "WorkDir")
# The controller filters by `--me` but not by a list of job IDs, which would load every job of the cluster.
SQUEUE = ("squeue", "--me", "-h", "--states=all", "-O", columns(FIELDS))
_WAITING_FIELDS = ("JobID", "Reason", "Partition", "StartTime", "NumNodes", "TimeLimit", "Dependency")
_ALLOCATION_FIELDS = ("JobID", "State", "NumNodes", "EndTime", "tres-per-node", "NodeList", "NumCPUs")
# How the batch scripts of ended jobs ended: for those that cannot record it themselves.
ENDS = ("squeue", "--me", "-h", "--states=all", "-O", columns(("JobArrayID", "State", "EndTime", "exit_code")))
# Each is followed by one job ID, by which the controller filters, so that the answer is cheap.
WAITING_JOB = ("squeue", "-h", "-O", columns(_WAITING_FIELDS), "-j")
OWN_JOB = ("squeue", "--me", "-h", "-O", columns(_ALLOCATION_FIELDS), "-j")
STEPS = ("squeue", "--me", "-h", "-s", "-o", f"%i{SEPARATOR}%j", "-j")
_STATUS = re.compile(r"\d{1,9}(?::\d{1,9})?", re.ASCII)
_STEP = re.compile(r"\d+\.[a-z0-9+]+", re.ASCII)
_JOB = re.compile(r"(?P<array>\d+)(?:_(?:\d+|\[(?P<waiting>[\d,:%-]+)\]))?", re.ASCII)
_GPU = re.compile(r"gpu(?::(?P<type>[^:]+?))??(?::(?P<count>\d+))?", re.ASCII)


class JobState(StrEnum):
    """squeue's job states, and UNKNOWN for states of later versions."""

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

    @classmethod
    def _missing_(cls, value: object) -> JobState:  # noqa: ARG003 - the signature of enum
        return cls.UNKNOWN

    @property
    def waiting(self) -> bool:
        """Not started yet, or waiting for a restart."""
        return self in _WAITING

    @property
    def ended(self) -> bool:
        return self in _ENDED


_STATES = tuple(JobState)
_WAITING = frozenset(_STATES[: _STATES.index(JobState.CONFIGURING)])
_ENDED = frozenset(_STATES[_STATES.index(JobState.COMPLETED) : _STATES.index(JobState.UNKNOWN)])


@dataclass(frozen=True)
class QueuedJob:
    """One job in squeue. Times are in seconds since the epoch; a pending job's `start_time` is an estimate."""

    job_id: str
    state: JobState
    reason: str
    nodes: str
    start_time: int | None
    end_time: int | None
    restart_count: int
    work_dir: str


@dataclass(frozen=True)
class ScriptEnd:
    """How a job and its batch script ended: its exit code, and the signal that ended it (0: none)."""

    job_id: str
    state: JobState
    time: int | None  # seconds since the epoch
    code: int
    signal: int


def parse_ends(text: str) -> list[ScriptEnd]:
    """Parse the answer to `ENDS`: a wait status, or CODE:SIGNAL. Never raises: foreign lines are ignored."""
    found = []
    for line in text.splitlines():
        match line.split(SEPARATOR):
            case [job_id, state, end, status, *_] if _STATUS.fullmatch(status):
                first, colon, second = status.partition(":")
                code, signal = (int(first), int(second)) if colon else (int(first) >> 8, int(first) & 127)
                time = int(end) if end.isdecimal() else None
                found.append(ScriptEnd(job_id, JobState(state), time, code & 255, signal))
    return found


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of all jobs of this user by job ID."""

    jobs: Mapping[str, QueuedJob]
    taken_at: float
    skipped: int = 0  # foreign lines in the output
    problem: SlurmError | None = None  # why there is no newer snapshot

    def in_folder(
        self, folder: Path, but_not: frozenset[str] = frozenset(), index: int | None = None
    ) -> QueuedJob | None:
        """The job in `folder`, or the element of the array there: finds a run whose job ID was not recorded."""
        for number, job in self.jobs.items():
            if number not in but_not and job.work_dir == str(folder):
                return job if index is None else self.jobs.get(element_id(number.partition("_")[0], index))
        return None


class _Jobs(Mapping[str, QueuedJob]):
    """Lazily parsed lines of squeue: a user may have ten thousand jobs but few runs."""

    def __init__(self) -> None:
        self._lines: dict[str, str] = {}
        self._waiting: dict[str, tuple[str, str]] = {}  # array -> its pending indices, and their common line

    def add(self, line: str) -> bool:
        """Add a line of squeue's output; False if it is not one."""
        name = line.partition(SEPARATOR)[0]
        match = _JOB.fullmatch(name)
        if not match or line.count(SEPARATOR) < len(FIELDS):
            return False
        if match["waiting"]:
            self._waiting[match["array"]] = match["waiting"], line
        else:
            self._lines[name] = line
        return True

    def __getitem__(self, job_id: str) -> QueuedJob:
        if job_id in self._lines:
            return _parse_line(self._lines[job_id])
        array, _, index = job_id.partition("_")
        indices, line = self._waiting[array]
        if index and not (index.isdecimal() and is_among(int(index), indices)):
            raise KeyError(job_id)
        return replace(_parse_line(line), job_id=job_id)

    def __iter__(self) -> Iterator[str]:
        return itertools.chain(self._lines, self._waiting)

    def __len__(self) -> int:
        return len(self._lines.keys() | self._waiting.keys())


def parse_queue(text: str, taken_at: float, problem: SlurmError | None = None) -> Snapshot:
    """Parse the output of `SQUEUE`; never raises: foreign lines are skipped and counted."""
    jobs = _Jobs()
    skipped = sum(not jobs.add(line) for line in text.split("\n") if line.strip())
    return Snapshot(jobs, taken_at, skipped, problem)


def _parse_line(line: str) -> QueuedJob:
    values = line.split(SEPARATOR)
    job_id, state, reason, nodes, started, ended, restarts = values[:7]
    return QueuedJob(
        job_id=job_id,
        state=JobState(state),
        reason="" if reason == "None" else reason,
        nodes=nodes,
        start_time=parse_number(started),
        end_time=parse_number(ended),
        restart_count=parse_number(restarts) or 0,
        work_dir=SEPARATOR.join(values[7:-1]),
    )


def parse_number(text: str, digits: int = 18) -> int | None:
    """An integer of at most `digits` digits, else None."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= digits else None


@dataclass(frozen=True)
class WaitingJob:
    """One pending job, to explain why it is waiting. `start` is Slurm's estimate in seconds since the epoch.

    `nodes` and `seconds` are what it requests by now: somebody may have changed it since its submission.
    """

    job_id: str
    reason: str
    partition: str
    start: float | None
    dependency: str
    nodes: int | None = None
    seconds: int | None = None


def parse_waiting(text: str) -> WaitingJob | None:
    """Parse the answer to `WAITING_JOB`; None if there is no such job."""
    for line in text.split("\n"):
        values = line.split(SEPARATOR)
        if len(values) > len(_WAITING_FIELDS):
            job_id, reason, partition, start, nodes, limit = values[:6]
            dependency = SEPARATOR.join(values[6:-1])
            estimate = parse_number(start, digits=12)
            return WaitingJob(
                job_id,
                reason,
                partition,
                start=None if estimate is None else float(estimate),
                dependency="" if dependency == "(null)" else dependency,
                nodes=parse_number(nodes.partition("-")[0], digits=9),  # such as 2-4
                seconds=parse_limit(limit),
            )
    return None


@dataclass(frozen=True)
class Allocation:
    """One job of this user that holds nodes or waits for them. `end_time` is in seconds since the epoch."""

    job_id: str
    state: str
    nodes: int
    end_time: int | None
    gpus_per_node: int | None  # None: it did not request GPUs per node
    node_list: str
    cpus: int | None = None  # of all its nodes

    @property
    def is_held(self) -> bool:
        return self.state == "RUNNING"


@dataclass(frozen=True)
class Step:
    """One step of a job: its full ID, such as 123.4, and its name."""

    id: str
    name: str


def parse_allocation(text: str) -> Allocation | None:
    """Parse the answer to `OWN_JOB`; None if this user has no such job."""
    for line in text.split("\n"):
        values = line.split(SEPARATOR)
        if len(values) > len(_ALLOCATION_FIELDS) and values[0].isdigit():
            job_id, state, nodes, end, tres, node_list, cpus, *_ = values
            gpus = count_gpus(re.sub(r"\bgres[:/]", "", tres))  # `gres:gpu:4` in 22.05, `gres/gpu:4` later
            per_node = next(iter(gpus.values()), None)
            numbers = parse_number(nodes) or 0, parse_number(end), per_node
            return Allocation(job_id, state, *numbers, node_list, parse_number(cpus))
    return None


def parse_steps(text: str) -> tuple[Step, ...]:
    """Parse the answer to `STEPS`; foreign lines are skipped."""
    parted = (line.partition(SEPARATOR) for line in text.split("\n"))
    return tuple(Step(number, name) for number, _, name in parted if _STEP.fullmatch(number))


def count_gpus(gres: str) -> Counter[str]:
    """The GPUs by type ("" if unnamed) in a list such as `gpu:a100:4(S:0-1),nvme:1`."""
    counts: Counter[str] = Counter()
    for word in re.sub(r"\([^)]*\)?", "", gres).split(","):  # sockets and indices contain commas too
        if match := _GPU.fullmatch(word):
            counts[match["type"] or ""] += parse_number(match["count"] or "1") or 0
    return counts


# Slurm's names for elements of job arrays: `12_7`, or several as `12_[0-3,7]` or `12_[3-9%4]`.


_INDICES = re.compile(r"(?P<first>\d{1,9})(?:-(?P<last>\d{1,9})(?::(?P<step>\d{1,9}))?)?", re.ASCII)


def element_id(array: str, index: int) -> str:
    """The job ID of an element of an array."""
    return f"{array}_{index}"


def together(job_ids: Iterable[str]) -> list[str]:
    """`job_ids` with the elements of each array combined, such as `12_[0-3,7]`, for a single request to Slurm."""
    arrays: dict[str, list[int]] = {}
    alone = []
    for job_id in job_ids:
        array, _, index = job_id.partition("_")
        if index.isdecimal():
            arrays.setdefault(array, []).append(int(index))
        else:
            alone.append(job_id)
    return [*alone, *(f"{array}_[{ranges(indices)}]" for array, indices in arrays.items())]


def is_among(index: int, indices: str) -> bool:
    """Whether `index` is in `0-3,7,20-40:5%4`; the number after `%` limits how many may run at once."""
    for part in indices.partition("%")[0].split(","):
        if match := _INDICES.fullmatch(part):
            first, last, step = int(match["first"]), int(match["last"] or match["first"]), int(match["step"] or 1)
            if index in range(first, last + 1, max(1, step)):
                return True
    return False
