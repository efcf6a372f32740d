"""sbatch: write the job down and start its supervisor."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.emulator import dependencies, jobs
from clusterctl.emulator.job_request import SBATCH, make_request, script_options
from clusterctl.emulator.jobs import HELD, JOB_MARK, EmulatedJob, EmulatedState, JobRecord
from clusterctl.emulator.output import shown_time
from clusterctl.errors import SlurmError

if TYPE_CHECKING:
    from clusterctl.emulator.virtual_cluster import Machine


def main(machine: Machine, arguments: list[str]) -> int:
    options, words = SBATCH.parse(arguments)
    name, script = _read(words)
    if not script:
        raise SlurmError("Batch script is empty!")
    if not script.startswith(b"#!"):
        raise SlurmError("This does not look like a batch script: its first line must start with #!")
    options = script_options(script.decode(errors="surrogateescape")) | options  # the command line wins
    request = make_request(options, words[1:], name, str(Path.cwd()))
    waits_for = dependencies.parse(options.get("dependency", ""))
    if (
        request.nodes > machine.nodes
        or request.cpus_on_each > machine.cpus_per_node
        or request.gpus_per_node > machine.gpus_per_node
        or request.gpu_type not in ("", machine.gpu_type)
    ):
        raise SlurmError("Batch job submission failed: Requested node configuration is not available")
    if "test-only" in options:
        from clusterctl.emulator import slots  # slow to import, seldom needed

        start = shown_time(slots.estimated_start(machine, request, time.time()))
        place = f"on {request.nodes} nodes in partition {request.partition}"
        print(f"sbatch: Job to start at {start} {place}", file=sys.stderr)
        return 0
    jobs.bury_lost(machine)
    jobs.forget_old(machine)
    waits_for = [one._replace(failed=False) for one in dependencies.left(machine, waits_for)]
    reason = HELD if "hold" in options else dependencies.WAITS if waits_for else "None"
    record = JobRecord(EmulatedState.PENDING, reason, time.time(), dependencies=waits_for)
    job, control = jobs.publish(machine, request, dict(os.environ), script, record)
    _start_supervisor(machine, job, control)
    print(job.id if "parsable" in options else f"Submitted batch job {job.id}")
    return 0


def _read(words: list[str]) -> tuple[str, bytes]:
    """The job's default name and the script: of the file that is named, else of standard input."""
    if not words:
        return "sbatch", sys.stdin.buffer.read()
    path = Path(words[0])
    try:
        return path.name, path.read_bytes()
    except OSError as error:
        raise SlurmError(f"Unable to open file {path}: {error.strerror}") from None


def _start_supervisor(machine: Machine, job: EmulatedJob, control: int) -> None:
    """A process of its own that outlives this command. Its standard input is the job's pipe, open all the way."""
    log = os.fspath(job.folder / "supervisor.log")
    start = os.fspath(machine.bin / "start.py")
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-X", "utf8", "-I", "-S", start, "supervisor", str(job.id)],
        {name: value for name, value in os.environ.items() if name != JOB_MARK},  # sbatch may run inside a job
        file_actions=[
            (os.POSIX_SPAWN_DUP2, control, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
