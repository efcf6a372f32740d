"""sbatch: record the job in a new folder, created atomically, and start its supervisor."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.emulator import fifo, jobs, scheduling
from clusterctl.launcher.emulator.job_request import SBATCH, environment_options, make_request, script_options
from clusterctl.launcher.emulator.jobs import (
    HELD,
    JOB_MARK,
    EmulatedJob,
    EmulatedState,
    JobRecord,
    all_jobs,
    write_aside,
)
from clusterctl.launcher.emulator.output import shown_time
from clusterctl.launcher.emulator.variables import EXPORTS, exported
from clusterctl.shared.errors import SlurmError
from clusterctl.shared.record.interpreter import isolated

if TYPE_CHECKING:
    from clusterctl.launcher.emulator.job_request import JobRequest
    from clusterctl.launcher.emulator.virtual_cluster import Machine


def main(machine: Machine, arguments: list[str]) -> int:
    options, words = SBATCH.parse(arguments)
    name, script = _read(words)
    if not script:
        raise SlurmError("Batch script is empty!")
    if not script.startswith(b"#!"):
        raise SlurmError("This does not look like a batch script: its first line must start with #!")
    lines = script_options(script.decode(errors="surrogateescape"))
    options = lines | environment_options(os.environ) | options  # the command line wins
    request = make_request(options, words[1:], name, str(Path.cwd()))
    tasks = jobs.parse_indices(request.array)
    waits_for = scheduling.parse_dependencies(options.get("dependency", ""))
    if (
        request.nodes > machine.nodes
        or request.cpus_on_each > machine.cpus_per_node
        or request.gpus_per_node > machine.gpus_per_node
        or request.gpu_type not in ("", machine.gpu_type)
    ):
        raise SlurmError("Batch job submission failed: Requested node configuration is not available")
    if "test-only" in options:
        earliest = shown_time(scheduling.estimated_start(machine, request, time.time()))
        place = f"on {request.nodes} nodes in partition {request.partition}"
        print(f"sbatch: Job to start at {earliest} {place}", file=sys.stderr)
        return 0
    jobs.bury_lost(machine)
    jobs.forget_old(machine)
    waits_for = [one._replace(failed=False) for one in scheduling.open_dependencies(machine, waits_for)]
    reason = HELD if "hold" in options else scheduling.WAITS if waits_for else "None"
    record = JobRecord(
        EmulatedState.PENDING,
        reason,
        submitted=time.time(),
        dependencies=waits_for,
        tasks=tasks,
        throttle=jobs.throttle_of(request.array),
    )
    environment = exported(os.environ, options.get("export"))
    if "export" in options:
        environment[EXPORTS] = options["export"]
    job = start(machine, request, environment, script, record)
    print(job.id if "parsable" in options else f"Submitted batch job {job.id}")
    return 0


def _read(words: list[str]) -> tuple[str, bytes]:
    """The job's default name and the script, from the named file or else from standard input."""
    if not words:
        return "sbatch", sys.stdin.buffer.read()
    path = Path(words[0])
    try:
        return path.name, path.read_bytes()
    except OSError as error:
        raise SlurmError(f"Unable to open file {path}: {error.strerror}") from None


def start(
    machine: Machine, request: JobRequest, environment: dict[str, str], script: bytes, record: JobRecord
) -> EmulatedJob:
    """Publish a job under the next free id, and start its supervisor, a process that outlives this command.

    A new array gets the id of this job.
    """
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
        job = EmulatedJob(machine.jobs / str(number))
        with suppress(OSError):  # taken meanwhile: rename cannot replace a folder that is not empty
            aside.rename(job.folder)
            break
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
