"""What ended a whole job from outside, from the messages of srun, slurmstepd and pyxis."""

from __future__ import annotations

import re
from dataclasses import dataclass
from signal import SIGUSR2
from typing import TYPE_CHECKING

from clusterctl.errors import Cause
from clusterctl.observe.logs import time_of
from clusterctl.observe.slurm_log import EndedBy, job_ends

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.diagnosis.traces import AttemptTrace

_NODE_LOST = re.compile(r"srun: error: Node failure on (?P<node>\S+)")
# slurmd, which still answers, no longer knows the step of whose output srun has lost the connection.
_STEP_GONE = re.compile(r"srun: error: Aborting, io error and missing step on node (?P<index>\d+)")
_WARNED = re.compile(rf"terminated with signal {int(SIGUSR2)}\b")  # pyxis, about the process that unpacks the image
_SRUN_KILLED = re.compile(
    r'slurm_script: line \d+: +\d+ Killed +"\$\{(?:cctl_)?srun\[@\]\}" '
)  # bash's message about its child
_MEANINGS = {
    EndedBy.CANCELLATION: (Cause.CANCELLED, "the job was cancelled"),
    EndedBy.TIME_LIMIT: (Cause.TIME, "the time limit was reached"),
    EndedBy.PREEMPTION: (Cause.PREEMPTED, "another job took its nodes"),
    EndedBy.REQUEUE: (Cause.PREEMPTED, "the job was requeued (scontrol requeue, or a preemption)"),
    EndedBy.NODE_FAILURE: (Cause.NODE, "Slurm lost a node of the job"),
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
    if gone := next(filter(None, map(_STEP_GONE.search, attempt.lines)), None):
        nodes = list(dict.fromkeys(rank.node for rank in attempt.ranks))  # of the step, in its order
        node = nodes[int(gone["index"])] if attempt.whole and int(gone["index"]) < len(nodes) else ""
        where = f"on {node}" if node else "of a node"
        words = f"the slurmstepd {where} ended: it was killed, manually or by the kernel, or the node was restarted"
        return Ending(Cause.KILLED, words, node, certain=False)
    if any(_SRUN_KILLED.search(line) for line in attempt.lines):
        words = "srun was killed on the job's first node: manually, by the kernel, or by a Slurm that forgot the job"
        return Ending(Cause.KILLED, words, time=attempt.end or 0.0, certain=False)
    own_nodes = {rank.node for rank in attempt.ranks if rank.node}
    for end in job_ends(attempt.job_lines, attempt.job_id):
        if own_nodes and end.node not in own_nodes:
            continue
        if end.by is EndedBy.REQUEUE and (attempt.requeued or attempt.requeuing):
            continue  # a consequence of its end
        unknown = Cause.UNKNOWN, f"Slurm ended the job: {end.words.lower()}"
        cause, words = _MEANINGS.get(end.by, unknown)
        # slurmstepd writes local time; nodes and login node nearly always share a time zone.
        return Ending(cause, words, time=time_of(end.at.encode()) or 0.0)
    return None
