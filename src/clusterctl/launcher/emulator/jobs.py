"""The jobs of the virtual cluster: one folder each.

jobs/<id>/request.json      what sbatch was asked for, next to environment.json and script
jobs/<id>/record.json       state, nodes, times; written only by the job's supervisor
jobs/<id>/control           the pipe that the supervisor listens on, until the job has ended
jobs/<id>/steps/<n>         the pipe of each srun; its name is in names/<n>

The pending elements of an array are one job, under the array's id. Each becomes a job of its own when it starts or a
command names it; the last one keeps the id.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.launcher.emulator import fifo, process_trees
from clusterctl.launcher.emulator.job_request import JobRequest
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.record.plain_text import ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from clusterctl.launcher.emulator.virtual_cluster import Machine


KEPT_SECONDS = 86400
_ANSWER_SECONDS = 10.0
HELD = "JobHeldUser"
_COMPLETING = "Job/step already completing or completed"
JOB_MARK = "CLUSTERCTL_EMULATOR_JOB"  # the job's folder, in the environment of each of its processes


class EmulatedState(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETING = "COMPLETING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    CANCELLED = "CANCELLED"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"

    @property
    def ended(self) -> bool:
        return self not in (EmulatedState.PENDING, EmulatedState.RUNNING, EmulatedState.COMPLETING)


class JobRecord(NamedTuple):
    """The current state of a job. Times are seconds since the epoch; `status` is a raw wait status."""

    state: EmulatedState
    reason: str
    submitted: float
    started: float | None = None
    ended: float | None = None
    restarts: int = 0
    status: int = 0
    nodes: Sequence[int] = ()  # those it holds, or held when it ended
    gpus: Sequence[Sequence[int]] = ()  # on each of these nodes
    dependencies: Sequence[tuple[str, str, bool]] = ()  # the unsatisfied ones (`scheduling`)
    array: int = 0  # the id of its array
    tasks: Sequence[int] = ()  # its index in the array, or the pending indices; each becomes a job when it starts
    throttle: int = 0  # how many jobs of the array may hold nodes at once; 0: no limit
    excluded: Sequence[int] = ()  # nodes it must not get
    preempted: float | None = None  # when another job first needed its nodes

    @property
    def in_line(self) -> bool:
        """Whether the job is queued for nodes: ahead of lower tiers and of higher ids."""
        return self.state is EmulatedState.PENDING and self.reason in ("None", "Priority", "Resources")

    def holds(self, indices: Sequence[int]) -> bool:
        """Whether this job contains one of these array elements; no indices means any element."""
        return not indices or not set(indices).isdisjoint(self.tasks)


class EmulatedJob:
    """The folder of one job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.id = int(folder.name)
        self.control = folder / "control"
        self.steps = folder / "steps"
        self.step_names = folder / "names"

    @property
    def request(self) -> JobRequest:
        return JobRequest(**_read(self.folder / "request.json"))

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the sbatch call."""
        return dict(_read(self.folder / "environment.json"))

    @property
    def record(self) -> JobRecord:
        values = _read(self.folder / "record.json")
        return JobRecord(**{**values, "state": EmulatedState(values["state"])})

    def write(self, record: JobRecord) -> None:
        write_aside(self.folder / "record.json", record._asdict())

    @property
    def is_supervised(self) -> bool:
        return fifo.has_reader(self.control)

    @property
    def is_lost(self) -> bool:
        """Whether its supervisor was killed: one that exits by itself writes the record, then removes the pipe."""
        return self.control.exists() and not self.is_supervised and not self.record.state.ended

    def ask(self, *words: str) -> None:
        """Send the supervisor a command. Raises SlurmError if it refuses or does not answer."""
        mailbox = self.folder / f"answer-{os.getpid()}-{time.time_ns()}"
        descriptor = fifo.create(mailbox)
        try:
            if not fifo.send(self.control, mailbox.name, *words):
                raise SlurmError(_COMPLETING)
            deadline = time.monotonic() + _ANSWER_SECONDS
            while time.monotonic() < deadline:
                fifo.wait([descriptor], 0.1)
                is_over = not self.is_supervised  # asked first: it may answer and then end
                if answer := fifo.drain(descriptor):
                    if refusal := answer.decode().strip():
                        raise SlurmError(refusal)
                    return
                if is_over:
                    raise SlurmError(_COMPLETING)
            raise SlurmError("Socket timed out on send/recv operation")
        finally:
            os.close(descriptor)
            mailbox.unlink()


def live_steps(job: EmulatedJob) -> list[tuple[int, str]]:
    """The number and name of each running srun."""
    numbers = sorted(int(step.name) for step in job.steps.iterdir() if fifo.has_reader(step))
    names = {path.name: path.read_text() for path in job.step_names.iterdir()}
    return [(number, names.get(str(number), "")) for number in numbers]


def all_jobs(machine: Machine) -> list[EmulatedJob]:
    """Every known job, oldest first."""
    try:
        ids = sorted(int(folder.name) for folder in machine.jobs.iterdir() if folder.name.isdigit())
    except FileNotFoundError:
        return []
    return [EmulatedJob(machine.jobs / str(number)) for number in ids]


def find(machine: Machine, job_id: str) -> EmulatedJob:
    """Raises SlurmError for an unknown id."""
    folder = machine.jobs / job_id
    if not (job_id.isascii() and job_id.isdigit() and folder.is_dir()):
        raise SlurmError(UNKNOWN_JOB)
    return EmulatedJob(folder)


def chosen(machine: Machine, target: str) -> list[EmulatedJob]:
    """The jobs that contain what `target` names: `12` (a job or an array), `12_3` or `12_[3-5]`; oldest first.

    Raises SlurmError if there is none.
    """
    number, indices = parse_target(target)
    job = EmulatedJob(machine.jobs / str(number))
    if job.folder.is_dir() and not indices and job.record.array != number:
        return [job]
    found = [(job, job.record) for job in all_jobs(machine) if job.id >= number]  # elements get higher ids
    wanted = [job for job, record in found if record.array == number and record.holds(indices)]
    if not wanted:
        raise SlurmError(UNKNOWN_JOB)
    return wanted


def split(machine: Machine, target: str) -> Iterator[EmulatedJob]:
    """Like `chosen`, but without other elements: a pending job that contains more is split in two first.

    Jobs of several elements come first: once the caller has dealt with them, no further element can start.
    """
    indices = set(parse_target(target)[1])
    for job in chosen(machine, target) if indices else ():
        with suppress(SlurmError):  # it has just ended
            if not indices.issuperset(job.record.tasks):
                job.ask("split", ranges(sorted(indices)))
    seen = set()
    for several in (True, False):
        for job in chosen(machine, target):
            tasks = job.record.tasks
            if job.id not in seen and (len(tasks) > 1 or not several) and (not indices or indices.issuperset(tasks)):
                seen.add(job.id)
                yield job


def nudge(machine: Machine) -> None:
    """Have all pending jobs look for slots."""
    for job in all_jobs(machine):
        if job.is_supervised and job.record.state is EmulatedState.PENDING:
            fifo.send(job.control, "-", "nudge")


def bury_lost(machine: Machine) -> None:
    """Record the end of jobs whose supervisor was killed, and kill their remaining processes.

    As there is no daemon, every command does this first.
    """
    for job in all_jobs(machine):
        if job.is_lost:
            process_trees.kill_marked(f"{JOB_MARK}={job.folder}")
            job.write(job.record._replace(state=EmulatedState.NODE_FAIL, reason="NodeDown", ended=time.time()))
            job.control.unlink(missing_ok=True)
            nudge(machine)


def forget_old(machine: Machine) -> None:
    """Remove jobs that ended long ago, except the newest: its id must not be reused."""
    ended = (job.folder for job in all_jobs(machine)[:-1] if not job.control.exists())
    horizon = time.time() - KEPT_SECONDS
    if old := [folder for folder in ended if folder.stat().st_mtime < horizon]:
        import shutil  # slow to import, seldom needed

        for folder in old:
            shutil.rmtree(folder, ignore_errors=True)


def write_aside(path: Path, record: Any) -> None:
    """Like `write_json` of shared.record.files, but importing that package would take longer than a whole command."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(record))
    aside.replace(path)


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


# Job arrays: `--array=0-9%4` as sbatch reads it, `0-9%4` as squeue writes it, and `12_[3-5]` as commands name jobs.


MAX_ARRAY_SIZE = 1001  # Slurm's default MaxArraySize; the highest index is one less
_LONGEST = 64  # longest index list that squeue prints, unless SLURM_BITSTR_LEN overrides it; 0: no limit
UNKNOWN_JOB = "Invalid job id specified"
_INVALID = "Batch job submission failed: Invalid job array specification"
_RANGE = re.compile(r"\[?\s*([0-9]{1,9})\]?(?:-([0-9]{1,9})\]?(?::([0-9]{1,9})\]?)?)?(?:%.*)?", re.DOTALL)


def parse_indices(text: str) -> list[int]:
    """The indices in `0-9%4`, `1,3,5-8` or `0-20:5`; empty if `text` is. Raises SlurmError."""
    found: set[int] = set()
    for word in filter(None, text.split(",")):
        match = _RANGE.fullmatch(word)
        if not match:
            raise SlurmError(_INVALID)
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if not (first <= last < MAX_ARRAY_SIZE and 0 < step < MAX_ARRAY_SIZE):
            raise SlurmError(_INVALID)
        found.update(range(first, last + 1, step))
    return sorted(found)


def throttle_of(text: str) -> int:
    """How many elements may run at once: 4 for `0-9%4`, 0 for no limit. Like Slurm's parser, it never fails."""
    match = re.search(r"%([0-9]{1,9})", text)
    return int(match[1]) if match else 0


def array_environment(text: str) -> dict[str, object]:
    """The variables that describe the whole array to each of its elements; all None in a job outside an array."""
    indices = parse_indices(text)
    names = [f"SLURM_ARRAY_TASK_{name}" for name in ("COUNT", "MIN", "MAX", "STEP")]
    if not indices:
        return dict.fromkeys(names)
    step = re.search(r":([0-9]+)", text)
    return dict(zip(names, (len(indices), indices[0], indices[-1], int(step[1]) if step else 1), strict=True))


def shown_elements(record: JobRecord) -> str:
    """The elements of a job as squeue shows them: `3`, or `3-9%4` for pending ones."""
    tasks = record.tasks
    if len(tasks) < 2:
        return str(tasks[0]) if tasks else "N/A"
    steps = {later - earlier for earlier, later in pairwise(tasks)}
    if len(tasks) > 5 and tasks[-1] - tasks[0] > 10 and len(steps) == 1 and steps != {1}:
        text = f"{tasks[0]}-{tasks[-1]}:{steps.pop()}"
    else:
        text = ranges(tasks)
        longest = int(os.environ.get("SLURM_BITSTR_LEN", _LONGEST))
        if longest and len(text) > longest - 3:
            text = f"{text[: longest - 4]}..."
    return f"{text}%{record.throttle}" if record.throttle else text


def job_name(job_id: int, record: JobRecord) -> str:
    """What squeue calls a job: `12`, `12_3` for an array element, `12_[3-9%4]` for its pending elements."""
    if not record.tasks:
        return str(job_id)
    element = f"[{shown_elements(record)}]" if len(record.tasks) > 1 else record.tasks[0]
    return f"{record.array}_{element}"


def parse_target(text: str) -> tuple[int, list[int]]:
    """The job number and the indices of `12_3` or `12_[3-5]`; no indices for `12` and `12_*`. Raises SlurmError."""
    match = re.fullmatch(r"([0-9]{1,10})(?:_\*)?(?:_(?:([0-9]{1,9})|\[([0-9:,%-]*[0-9])\]))?", text)
    if not match:
        raise SlurmError(UNKNOWN_JOB)
    try:
        return int(match[1]), parse_indices(match[2] or match[3] or "")
    except SlurmError:
        raise SlurmError(UNKNOWN_JOB) from None


def targets(text: str) -> list[str]:
    """12,13_[1,3-4] -> 12 and 13_[1,3-4]"""
    return re.findall(r"(?:\[[^\]]*\]|[^,])+", text) or [text]
