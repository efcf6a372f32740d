"""The host step of a warm run: srun, started in a session of its own, so that it needs no terminal and no shell.

Should its srun be killed on the login node, the step goes on (seen with 22.05): what it writes goes to files.
"""

from __future__ import annotations

import os
import time
from threading import Thread
from typing import TYPE_CHECKING

from clusterctl.launch.sbatch import SlurmRefused
from clusterctl.launch.warm import HOST, step_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from clusterctl.launch.plan import Plan

LONGEST_START_SECONDS = 30.0
_LOOK_SECONDS = 0.05


def start_host_step(plan: Plan, time_limit: str, srun: str, environment: Mapping[str, str]) -> None:
    """Start the script of `plan` in its allocation, and wait until it has begun (or half a minute).

    Raises SlurmRefused with srun's own words where it ends before.
    """
    assert plan.warm is not None
    argv = [
        srun,
        f"--jobid={plan.warm.job_id}",
        "--overlap",
        f"--job-name={step_name(plan.run.id, HOST)}",
        "--nodes=1",
        "--ntasks=1",
        "--relative=0",  # the allocation's first node, where all scripts of it run
        "--mem=0",
        f"--time={time_limit}",
        "--mpi=none",
        "--input=none",
        f"--output={plan.slurm_log}",
        "--open-mode=append",
        f"--chdir={plan.run.path}",
        "/bin/bash",
        str(plan.run.script),
    ]
    pid = os.posix_spawn(
        srun,
        argv,
        {**environment, **plan.secrets},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, plan.slurm_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    ended, deadline = 0, time.monotonic() + LONGEST_START_SECONDS
    while time.monotonic() < deadline and not ended and not plan.run.attempts():
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended and not plan.run.attempts():
            words = _last_line(plan.slurm_log) or f"exit code {os.waitstatus_to_exitcode(status)}"
            raise SlurmRefused(f"srun did not start the run: {words}", "is the allocation still there? squeue --me")
        time.sleep(_LOOK_SECONDS)
    if not ended:  # a process that lives on, such as a notebook's, is to keep no zombie
        Thread(target=os.waitpid, args=(pid, 0), daemon=True).start()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() or [""]
    return lines[-1].removeprefix("srun: ").removeprefix("error: ")
