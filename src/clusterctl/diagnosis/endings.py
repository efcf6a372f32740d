"""What ended a whole job from outside, from the messages of srun, slurmstepd and pyxis."""

from __future__ import annotations

import re
from dataclasses import dataclass
from signal import SIGUSR2
from typing import TYPE_CHECKING

from clusterctl.errors import Cause
from clusterctl.observe.logs import time_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.diagnosis.traces import AttemptTrace

_NODE_LOST = re.compile(r"srun: error: Node failure on (?P<node>\S+)")
_JOB_ENDED = re.compile(
    r"\*\*\* JOB (?P<job>\d+) ON (?P<node>\S+) CANCELLED AT (?P<at>[\dT:-]+)(?: DUE TO (?P<why>[A-Z ]+))?"
)
_WARNED = re.compile(rf"terminated with signal {int(SIGUSR2)}\b")  # pyxis, about the process that unpacks the image
_SRUN_KILLED = re.compile(
    r'slurm_script: line \d+: +\d+ Killed +"\$\{(?:cctl_)?srun\[@\]\}" '
)  # bash's message about its child
_DUE_TO = {
    "TIME LIMIT": (Cause.TIME, "the time limit was reached"),
    "PREEMPTION": (Cause.PREEMPTED, "another job took its nodes"),
    "JOB REQUEUE": (Cause.PREEMPTED, "the job was requeued (scontrol requeue, or a preemption)"),
    "NODE FAILURE": (Cause.NODE, "Slurm lost a node of the job"),
}


@dataclass(frozen=True)
class Ending:
    """What ended a whole job from outside, and when (0: unknown)."""

    cause: Cause
    words: str
    node: str = ""
    time: float = 0.0
    certain: bool = True


def lost_nodes(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(match["node"] for line in lines if (match := _NODE_LOST.search(line))))


def warned_before_start(attempt: AttemptTrace) -> bool:
    """Whether the warning signal killed the process unpacking the image, so that no rank started."""
    words = (line for rank in attempt.ranks for line in rank.last_words)
    return not any(rank.began for rank in attempt.ranks) and any(map(_WARNED.search, (*attempt.lines, *words)))


def job_ending(attempt: AttemptTrace) -> Ending | None:
    """What ended this attempt's job according to slurmstepd and srun; None without a message."""
    if nodes := lost_nodes(attempt.lines):
        return Ending(Cause.NODE, f"Slurm lost node {', '.join(nodes)}", nodes[0])
    if any(_SRUN_KILLED.search(line) for line in attempt.lines):
        words = "srun was killed on the job's first node, manually or by the kernel, and its ranks with it"
        return Ending(Cause.KILLED, words, time=attempt.end or 0.0)
    for line in reversed(attempt.job_lines):
        match = _JOB_ENDED.search(line)
        if match is None or not _is_of(attempt, match["job"], match["node"]):
            continue
        # slurmstepd writes local time; nodes and login node nearly always share a time zone.
        at = time_of(match["at"].encode()) or 0.0
        why = (match["why"] or "").strip()
        if why.startswith("JOB REQUEUE") and attempt.requeued:
            continue  # a consequence of its end
        if not why:
            return Ending(Cause.CANCELLED, "the job was cancelled", time=at)
        unknown = Cause.UNKNOWN, f"Slurm ended the job: {why.lower()}"
        cause, words = next((meaning for begin, meaning in _DUE_TO.items() if why.startswith(begin)), unknown)
        return Ending(cause, words, time=at)
    return None


def _is_of(attempt: AttemptTrace, job: str, node: str) -> bool:
    """Whether a line is this attempt's: a disconnected node may write its line during a later attempt."""
    nodes = {rank.node for rank in attempt.ranks if rank.node}
    return job == (attempt.job_id or job) and (not nodes or node in nodes)
