"""A new job: create its folder atomically, and start its supervisor."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from clusterctl.launcher.emulator import fifo
from clusterctl.launcher.emulator.jobs import JOB_MARK, EmulatedJob, JobRecord, all_jobs, write_aside
from clusterctl.shared.record.interpreter import isolated

if TYPE_CHECKING:
    from clusterctl.launcher.emulator.job_request import JobRequest
    from clusterctl.launcher.emulator.virtual_cluster import Machine


def start(
    machine: Machine, request: JobRequest, environment: dict[str, str], script: bytes, record: JobRecord
) -> EmulatedJob:
    """Publish a job under the next free id, and start its supervisor, a process that outlives this command."""
    job, control = _publish(machine, request, environment, script, record)
    log = os.fspath(job.folder / "supervisor.log")
    words = ("-X", "utf8", os.fspath(machine.bin / "start.py"), "supervisor", str(job.id))
    os.posix_spawn(
        sys.executable,
        isolated(sys.executable, *words),
        {name: value for name, value in os.environ.items() if name != JOB_MARK},  # sbatch may run inside a job
        file_actions=[
            (os.POSIX_SPAWN_DUP2, control, 0),  # the job's pipe, which the supervisor never closes
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    os.close(control)
    return job


def _publish(
    machine: Machine, request: JobRequest, environment: dict[str, str], script: bytes, record: JobRecord
) -> tuple[EmulatedJob, int]:
    """Create the folder; returns the job and its open pipe. A new array gets the id of this job."""
    machine.jobs.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = machine.jobs / f".new-{os.getpid()}-{time.time_ns()}"
    aside.mkdir(mode=0o700)
    for name in ("steps", "names"):
        (aside / name).mkdir()
    (aside / "script").write_bytes(script)
    (aside / "script").chmod(0o700)
    write_aside(aside / "request.json", request._asdict())
    write_aside(aside / "environment.json", environment)
    control = fifo.create(aside / "control")
    while True:
        known = all_jobs(machine)
        number = known[-1].id + 1 if known else 1
        array = record.array or (number if record.tasks else 0)
        write_aside(aside / "record.json", record._replace(array=array)._asdict())
        folder = machine.jobs / str(number)
        try:
            aside.rename(folder)
        except OSError:  # taken meanwhile: rename cannot replace a folder that is not empty
            continue
        return EmulatedJob(folder), control
