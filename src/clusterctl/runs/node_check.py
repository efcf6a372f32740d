"""Checks a job's nodes before its ranks start (`[node_check]`): disks, clock, a matrix product, an all-reduce.

    python .../clusterctl/runs/__main__.py node_check SECONDS CLOCK_SECONDS SCRATCH MIB SHARED_MEMORY_MIB
    ... --judge

The first form runs on each node and records its progress, so that a node that hangs can be recognised. The second one
runs once, reads the names of the nodes from stdin, and prints the nodes that Slurm must exclude if any failed.
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
_OWN_SHARE = 0.8  # of the timeout that srun has for all nodes


@dataclass(frozen=True)
class Limits:
    """The requirements for a node. Sizes are in MiB."""

    seconds: float
    clock_seconds: float
    scratch: str
    scratch_size: float
    shared_memory: float


class MeetingPlace(Attempt):
    """The rendezvous of the nodes, separate from that of the ranks, which start later."""

    secret = Inside("../secret")


def check_node(attempt: Attempt, node: str, limits: Limits) -> None:
    """Check this node; exits after the time limit at any point, since a hanging call cannot be interrupted."""
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
        print(f"clusterctl: {node} skips compute and network in its check: no {missing.name}", file=sys.stderr)
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
    """A problem with the node's local disk or its shared memory, or empty."""
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
            return f"only {free:.0f} MiB free in {folder}, need {least:.0f}"
    return ""


def clock_problem(shared: Path, most_seconds: float) -> str:
    """A difference between this node's clock and that of the runs' file system, or empty."""
    ahead = clock_ahead(shared)
    if ahead is None:
        return f"cannot write to {shared}"
    return f"its clock is off by {-ahead:+.0f} s" if abs(ahead) > most_seconds else ""


def main(words: Sequence[str], users_path: Sequence[str] = ()) -> None:
    """Check this node, or judge all of them. torch may be in `users_path`, folders of PYTHONPATH."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # the warning is for the ranks
    attempt = current_attempt()
    assert attempt is not None
    seconds, clock, scratch, *sizes = words
    limits = Limits(float(seconds), float(clock), scratch, *map(float, sizes[:2]))
    if sizes[2:] == ["--judge"]:
        print(judge_attempt(attempt, sys.stdin.read().split(), limits.seconds))
    else:
        sys.path[1:1] = users_path
        check_node(attempt, os.environ["SLURMD_NODENAME"], limits)
        sys.stdout.flush()
        os._exit(0)  # destroying a process group may wait for other processes
