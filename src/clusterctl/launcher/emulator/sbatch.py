"""sbatch: record the job and start its supervisor."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.emulator import dependencies, jobs, starting
from clusterctl.launcher.emulator.job_request import SBATCH, environment_options, make_request, script_options
from clusterctl.launcher.emulator.jobs import HELD, EmulatedState, JobRecord
from clusterctl.launcher.emulator.output import shown_time
from clusterctl.launcher.emulator.variables import VARIABLE as EXPORTS
from clusterctl.launcher.emulator.variables import exported
from clusterctl.shared.errors import SlurmError

if TYPE_CHECKING:
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
    waits_for = dependencies.parse(options.get("dependency", ""))
    if (
        request.nodes > machine.nodes
        or request.cpus_on_each > machine.cpus_per_node
        or request.gpus_per_node > machine.gpus_per_node
        or request.gpu_type not in ("", machine.gpu_type)
    ):
        raise SlurmError("Batch job submission failed: Requested node configuration is not available")
    if "test-only" in options:
        from clusterctl.launcher.emulator import scheduling  # slow to import, seldom needed

        start = shown_time(scheduling.estimated_start(machine, request, time.time()))
        place = f"on {request.nodes} nodes in partition {request.partition}"
        print(f"sbatch: Job to start at {start} {place}", file=sys.stderr)
        return 0
    jobs.bury_lost(machine)
    jobs.forget_old(machine)
    waits_for = [one._replace(failed=False) for one in dependencies.left(machine, waits_for)]
    reason = HELD if "hold" in options else dependencies.WAITS if waits_for else "None"
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
    job = starting.start(machine, request, environment, script, record)
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
