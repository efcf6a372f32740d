"""Decides which nodes failed the check before the ranks start, from the nodes' reports (`runs.node_check`).

`attempts/<n>/check/<node>.json` is a node's report, `attempts/<n>/check.json` the decision.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from clusterctl.runs.fields import read_fields
from clusterctl.runs.files import write_json
from clusterctl.runs.layout import RunDir

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clusterctl.runs.layout import Attempt

EXIT_UNFIT = 69  # of the batch script; sysexits.h: service unavailable
MEBIBYTE = 2**20


class Reached(StrEnum):
    """A node's progress in its check."""

    BEGUN = "begun"
    IMPORTED = "imported"  # disks and clock are fine, and torch has been imported
    MULTIPLIED = "multiplied"  # all checks that need no other node
    ALL = "all"


_DONE_ALONE = (Reached.MULTIPLIED, Reached.ALL)
_NOT_DONE = {
    None: "did not answer",
    Reached.BEGUN: "had not checked its disks and imported torch",
    Reached.IMPORTED: "had not multiplied two matrices",
}


@dataclass(frozen=True)
class NodeReport:
    """A node's report: its progress, the seconds since its start, and its problem, if any."""

    node: str
    reached: Reached
    seconds: float
    problem: str = ""

    def write(self, attempt: Attempt) -> None:
        write_json(attempt.check / f"{self.node}.json", asdict(self))


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
    reports = _reports(attempt, nodes)
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


def _reports(attempt: Attempt, nodes: Sequence[str]) -> dict[str, NodeReport]:
    found = {}
    for node in nodes:
        fields = read_fields(attempt.check / f"{node}.json")
        if reached := fields.member("reached", Reached):
            found[node] = NodeReport(node, reached, fields.number("seconds") or 0.0, fields.text("problem"))
    return found
