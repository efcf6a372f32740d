"""The jobs of the virtual cluster: one folder each.

jobs/<id>/request.json      what sbatch was asked for, environment.json and script beside it
jobs/<id>/record.json       state, nodes, times; written by the job's supervisor alone
jobs/<id>/control           the pipe that the supervisor listens on, until the job has ended
jobs/<id>/steps/<n>         the pipe of each srun; its name in names/<n>
"""

from __future__ import annotations

import json
import os
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.emulator import fifo, process_trees
from clusterctl.emulator.job_request import JobRequest
from clusterctl.errors import SlurmError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from clusterctl.emulator.virtual_cluster import Machine

KEPT_SECONDS = 86400
_ANSWER_SECONDS = 10.0
HELD = "JobHeldUser"
UNKNOWN_JOB = "Invalid job id specified"
_COMPLETING = "Job/step already completing or completed"
JOB_MARK = "CLUSTERCTL_EMULATOR_JOB"  # in the environment of every process of a job: its folder


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
    """What became of a job so far. Times are seconds since the epoch; `status` is a raw wait status."""

    state: EmulatedState
    reason: str
    submitted: float
    started: float | None = None
    ended: float | None = None
    restarts: int = 0
    status: int = 0
    nodes: Sequence[int] = ()  # that it holds, or held when it ended
    gpus: Sequence[Sequence[int]] = ()  # of each of them
    dependencies: Sequence[tuple[str, int, bool]] = ()  # that are not met (`dependencies`)
    excluded: Sequence[int] = ()  # nodes that it must not get

    @property
    def in_line(self) -> bool:
        """Whether the job stands in the queue, before those of lower tiers and those with higher ids."""
        return self.state is EmulatedState.PENDING and self.reason in ("None", "Priority", "Resources")


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
        """The environment that sbatch was called in."""
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
        """Whether its supervisor was killed; one that ends by itself writes the record before it removes the pipe."""
        return self.control.exists() and not self.is_supervised and not self.record.state.ended

    def ask(self, *words: str) -> None:
        """Have the supervisor do something; raises SlurmError if it refuses or does not answer."""
        mailbox = self.folder / f"answer-{os.getpid()}-{time.time_ns()}"
        descriptor = fifo.create(mailbox)
        try:
            if not fifo.send(self.control, mailbox.name, *words):
                raise SlurmError(_COMPLETING)
            deadline = time.monotonic() + _ANSWER_SECONDS
            while time.monotonic() < deadline:
                fifo.wait([descriptor], 0.1)
                if answer := fifo.drain(descriptor):
                    if refusal := answer.decode().strip():
                        raise SlurmError(refusal)
                    return
                if not self.is_supervised:
                    raise SlurmError(_COMPLETING)
            raise SlurmError("Socket timed out on send/recv operation")
        finally:
            os.close(descriptor)
            mailbox.unlink()


def live_steps(job: EmulatedJob) -> list[tuple[int, str]]:
    """The number and the name of each srun that runs."""
    numbers = sorted(int(step.name) for step in job.steps.iterdir() if fifo.has_reader(step))
    names = {path.name: path.read_text() for path in job.step_names.iterdir()}
    return [(number, names.get(str(number), "")) for number in numbers]


def all_jobs(machine: Machine) -> list[EmulatedJob]:
    """Every job that is known, the oldest first."""
    try:
        ids = sorted(int(folder.name) for folder in machine.jobs.iterdir() if folder.name.isdigit())
    except FileNotFoundError:
        return []
    return [EmulatedJob(machine.jobs / str(number)) for number in ids]


def find(machine: Machine, job_id: str) -> EmulatedJob:
    """Raises SlurmError for an id that is unknown."""
    folder = machine.jobs / job_id
    if not (job_id.isascii() and job_id.isdigit() and folder.is_dir()):
        raise SlurmError(UNKNOWN_JOB)
    return EmulatedJob(folder)


def publish(
    machine: Machine, request: JobRequest, environment: dict[str, str], script: bytes, record: JobRecord
) -> tuple[EmulatedJob, int]:
    """Make a new job, whole at once, under the next free id; returns it with its pipe, held open."""
    machine.jobs.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = machine.jobs / f".new-{os.getpid()}-{time.time_ns()}"
    aside.mkdir(mode=0o700)
    for name in ("steps", "names"):
        (aside / name).mkdir()
    (aside / "script").write_bytes(script)
    (aside / "script").chmod(0o700)
    write_aside(aside / "request.json", request._asdict())
    write_aside(aside / "environment.json", environment)
    write_aside(aside / "record.json", record._asdict())
    control = fifo.create(aside / "control")
    while True:
        known = all_jobs(machine)
        folder = machine.jobs / str(known[-1].id + 1 if known else 1)
        try:
            aside.rename(folder)
        except OSError:  # taken meanwhile: a folder with content cannot be renamed over
            continue
        return EmulatedJob(folder), control


def nudge(machine: Machine) -> None:
    """Have all waiting jobs look for slots."""
    for job in all_jobs(machine):
        if job.is_supervised and job.record.state is EmulatedState.PENDING:
            fifo.send(job.control, "-", "nudge")


def bury_lost(machine: Machine) -> None:
    """Record the end of jobs whose supervisor was killed, and end what still runs of them.

    Every command does so first, as there is no daemon.
    """
    for job in all_jobs(machine):
        if job.is_lost:
            process_trees.kill_marked(f"{JOB_MARK}={job.folder}")
            job.write(job.record._replace(state=EmulatedState.NODE_FAIL, reason="NodeDown", ended=time.time()))
            job.control.unlink(missing_ok=True)
            nudge(machine)


def forget_old(machine: Machine) -> None:
    """Remove what ended long ago, but for the newest job: its id must not be given twice."""
    ended = (job.folder for job in all_jobs(machine)[:-1] if not job.control.exists())
    horizon = time.time() - KEPT_SECONDS
    if old := [folder for folder in ended if folder.stat().st_mtime < horizon]:
        import shutil  # slow to import, seldom needed

        for folder in old:
            shutil.rmtree(folder, ignore_errors=True)


def write_aside(path: Path, record: Any) -> None:
    """As runs.files.write_json, whose package takes longer to import than a stand-in may run."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(record))
    aside.replace(path)


def _read(path: Path) -> Any:
    return json.loads(path.read_text())
