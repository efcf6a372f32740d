"""The check of a job's nodes before its ranks begin (`[node_check]`): disks, clock, a matrix product, an all-reduce.

    python -m clusterctl.runs.node_check SECONDS CLOCK_SECONDS SCRATCH MIB SHARED_MEMORY_MIB
    ... --judge

The first form runs on each node, and writes how far it has come: a node that hangs is known by what is missing. The
second one runs once, with the names of the nodes on standard input, and prints those that Slurm is not to use again,
if one failed.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.runs.file_systems import clock_ahead
from clusterctl.runs.layout import Attempt, Inside
from clusterctl.runs.metrics import current_attempt
from clusterctl.runs.place import Place
from clusterctl.runs.unfit_nodes import MEBIBYTE, NodeReport, Reached, judge_attempt

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_SHARED_MEMORY = "/dev/shm"
_OWN_SHARE = 0.8  # of the time that srun has for all nodes


@dataclass(frozen=True)
class Limits:
    """What a node must have. Sizes are in MiB."""

    seconds: float
    clock_seconds: float
    scratch: str
    scratch_size: float
    shared_memory: float


class MeetingPlace(Attempt):
    """Where the nodes find each other, apart from the ranks, who come later."""

    secret = Inside("../secret")


def check_node(attempt: Attempt, node: str, limits: Limits) -> None:
    """Check this node, and leave after the time limit wherever that is: a call that hangs cannot be ended."""
    began = time.monotonic()

    def report(reached: Reached, problem: str = "") -> None:
        NodeReport(node, reached, time.monotonic() - began, problem).write(attempt)

    deadline = threading.Timer(limits.seconds * _OWN_SHARE, os._exit, [0])
    deadline.daemon = True
    deadline.start()
    report(Reached.BEGUN)
    if problem := disk_problem(limits) or clock_problem(attempt.path, limits.clock_seconds):
        report(Reached.BEGUN, problem)
        return
    try:
        smoke = importlib.import_module("clusterctl.task.smoke")  # imports torch
    except ModuleNotFoundError as missing:
        print(f"clusterctl: {node} multiplies and sends nothing in its check: no {missing.name}", file=sys.stderr)
        report(Reached.ALL)
        return
    report(Reached.IMPORTED)
    if problem := smoke.product_problem():
        report(Reached.IMPORTED, problem)
        return
    report(Reached.MULTIPLIED)
    smoke.all_reduce(Place.from_environment(), MeetingPlace(attempt.check))
    report(Reached.ALL)


def disk_problem(limits: Limits) -> str:
    """What is wrong with the node's own disk, or with its shared memory."""
    scratch = os.path.expandvars(limits.scratch)
    for folder, least in ((scratch, limits.scratch_size), (_SHARED_MEMORY, limits.shared_memory)):
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"x")
            status = os.statvfs(folder)
        except OSError as error:
            return f"cannot write to {folder}: {error.strerror}"
        free = status.f_bavail * status.f_frsize / MEBIBYTE
        if free < least:
            return f"{free:.0f} MiB free in {folder}, less than {least:.0f}"
    return ""


def clock_problem(shared: Path, most_seconds: float) -> str:
    """Whether this node's clock is off from that of the file system of the runs."""
    ahead = clock_ahead(shared)
    if ahead is None:
        return f"cannot write to {shared}"
    return f"its clock is off by {-ahead:+.0f} s" if abs(ahead) > most_seconds else ""


def main(words: Sequence[str]) -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # the warning is for the ranks
    attempt = current_attempt()
    assert attempt is not None
    seconds, clock, scratch, *sizes = words
    limits = Limits(float(seconds), float(clock), scratch, *map(float, sizes[:2]))
    if sizes[2:] == ["--judge"]:
        print(judge_attempt(attempt, sys.stdin.read().split(), limits.seconds))
    else:
        check_node(attempt, os.environ["SLURMD_NODENAME"], limits)
        sys.stdout.flush()
        os._exit(0)  # a group of processes may wait for others while it is taken down


if __name__ == "__main__":
    main(sys.argv[1:])
