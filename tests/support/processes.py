"""The processes of a run on this machine, for tests that signal them."""

from __future__ import annotations

import os
from pathlib import Path

from clusterctl.shared.record.layout import Attempt, RunDir


def alive(run: RunDir, rank: int | None = None) -> list[int]:
    """The running processes of the run's tasks, found by their environment, as nodes may have their own PID namespaces.

    A batch script and its srun have the environment of a task 0.
    """
    marks = {f"CLUSTERCTL_RUN_DIR={run.path}"} | ({f"SLURM_PROCID={rank}"} if rank is not None else set())
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            name = (folder / "comm").read_text().strip()
        except OSError:
            continue
        of_task = any(variable.startswith("SLURM_PROCID=") for variable in variables) and name != "srun"
        if of_task and marks <= set(variables):
            found.append(int(folder.name))
    return sorted(found)


def writers(attempt: Attempt) -> list[int]:
    """The writers of the attempt's nodes, on this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:  # it has just ended
            continue
        if os.fsencode(attempt.path) in words and any(b"node_writer" in word for word in words):
            found.append(int(path.parent.name))
    return found
