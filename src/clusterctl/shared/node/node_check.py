"""Checks a job's nodes before its ranks start (`[node_check]`): disks, clock, a matrix product, an all-reduce.

    python .../clusterctl/shared/node/__main__.py node_check SECONDS CLOCK_SECONDS SCRATCH MIB SHARED_MEMORY_MIB
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
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from clusterctl.shared.record.fields import read_fields
from clusterctl.shared.record.files import clock_ahead, write_json
from clusterctl.shared.record.layout import Attempt, Inside, RunDir, current_attempt
from clusterctl.shared.record.place import Place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


EXIT_UNFIT = 69  # of the batch script; sysexits.h: service unavailable
MEBIBYTE = 2**20
_SHARED_MEMORY = "/dev/shm"
_OWN_SHARE = 0.8  # of the timeout that srun has for all nodes


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


@dataclass(frozen=True)
class Limits:
    """The requirements for a node. Sizes are in MiB."""

    seconds: float
    clock_seconds: float
    scratch: str
    scratch_size: float
    shared_memory: float


class Reached(StrEnum):
    """A node's progress in its check."""

    BEGUN = "begun"
    IMPORTED = "imported"  # disks and clock are fine, and torch has been imported
    MULTIPLIED = "multiplied"  # all checks that need no other node
    ALL = "all"


@dataclass(frozen=True)
class NodeReport:
    """A node's report: its progress, the seconds since its start, and its problem, if any."""

    node: str
    reached: Reached
    seconds: float
    problem: str = ""

    def write(self, attempt: Attempt) -> None:
        write_json(attempt.check / f"{self.node}.json", asdict(self))


_DONE_ALONE = (Reached.MULTIPLIED, Reached.ALL)
_NOT_DONE = {
    None: "did not answer",
    Reached.BEGUN: "had not checked its disks and imported torch",
    Reached.IMPORTED: "had not multiplied two matrices",
}


class MeetingPlace(Attempt):
    """The rendezvous of the nodes, separate from that of the ranks, which start later."""

    secret = Inside("../secret")


def check_node(attempt: Attempt, node: str, limits: Limits) -> None:
    """Check this node; exits after the time limit at any point, since a hanging call cannot be interrupted."""
    began = time.monotonic()

    def report(reached: Reached, problem: str = "") -> None:
        NodeReport(node, reached, time.monotonic() - began, problem).write(attempt)

    # With 0: its report shows how far it came, and `judge` decides from those of all nodes.
    deadline = threading.Timer(limits.seconds * _OWN_SHARE, os._exit, [0])
    deadline.daemon = True
    deadline.start()
    report(Reached.BEGUN)
    if problem := disk_problem(limits) or clock_problem(attempt.path, limits.clock_seconds):
        report(Reached.BEGUN, problem)
        return
    try:
        smoke = importlib.import_module("clusterctl.engine.task.smoke")  # imports torch
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


def judge(reports: Mapping[str, NodeReport], nodes: Sequence[str], seconds: float) -> dict[str, str]:
    """The nodes that failed, with their problems.

    A node is late only if another one took less than half of the time: import and network may be slow for all nodes. If
    all of several nodes fail, none of them is blamed.
    """
    failed = {}
    quick = [report.seconds for report in reports.values() if report.reached in _DONE_ALONE and not report.problem]
    fastest = min(quick, default=seconds)
    for node in nodes:
        report = reports.get(node)
        if report and report.problem:
            failed[node] = report.problem
        elif (not report or report.reached not in _DONE_ALONE) and fastest <= seconds / 2:
            what = _NOT_DONE[report.reached if report else None]
            failed[node] = f"{what} within {seconds:g} s; another node took {fastest:.1f} s"
    return failed if len(failed) < max(2, len(nodes)) else {}


def judge_attempt(attempt: Attempt, nodes: Sequence[str], seconds: float) -> str:
    """Record which nodes failed; returns the nodes to exclude at the next start, in Slurm's format, or empty.

    Includes the exclusions of the job itself and of earlier attempts.
    """
    reports = {}
    for node in nodes:
        fields = read_fields(attempt.check / f"{node}.json")
        if reached := fields.member("reached", Reached):
            reports[node] = NodeReport(node, reached, fields.number("seconds") or 0.0, fields.text("problem"))
    failed = judge(reports, nodes, seconds)
    alike = {node: reports[node].problem for node in nodes if node in reports and reports[node].problem}
    write_json(attempt.check_json, {"failed": failed})
    for node, problem in failed.items():
        print(f"clusterctl: {node} failed its check: {problem}", file=sys.stderr, flush=True)
    if not failed:
        for problem in dict.fromkeys(alike.values()):
            where = ", ".join(node for node, words in alike.items() if words == problem)
            words = f"all nodes failed their check, so none is excluded: {problem} ({where})"
            print(f"clusterctl: {words}", file=sys.stderr)
        late = [
            node
            for node in nodes
            if node not in alike and (node not in reports or reports[node].reached is not Reached.ALL)
        ]
        if late:
            print(f"clusterctl: check not completed within {seconds:g} s: {', '.join(late)}", file=sys.stderr)
        return ""
    run = RunDir(attempt.path.parents[1])
    own = read_fields(run.run_json).table("job").table("resources").text("exclude")
    before = [node for other in run.attempts() for node in failed_nodes(other)]
    return ",".join(filter(None, dict.fromkeys([own, *before, *failed])))


def failed_nodes(attempt: Attempt) -> dict[str, str]:
    """The nodes that failed the check of `attempt`, with their problems."""
    return read_fields(attempt.check_json).table("failed").named_texts()
