"""What srun and slurmstepd say of an end: which task left how before the rest was told to, and what ended the job."""

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

_TASK = re.compile(r"srun: error: (?P<node>[^\s:]+): tasks? (?P<ranks>[\d,-]+): (?P<how>.+)")
# From here on tasks end because they were told to.
_ABORTED = re.compile(
    r"_step_signal: Terminating|\*\*\* STEP \S+ ON .* CANCELLED|Job step aborted|Terminating job step"
)
_NODE_LOST = re.compile(r"srun: error: Node failure on (?P<node>\S+)")
_JOB_ENDED = re.compile(
    r"\*\*\* JOB (?P<job>\d+) ON (?P<node>\S+) CANCELLED AT (?P<at>[\dT:-]+)(?: DUE TO (?P<why>[A-Z ]+))?"
)
_WARNED = re.compile(rf"terminated with signal {int(SIGUSR2)}\b")  # pyxis, of what unpacks the image
_SRUN_KILLED = re.compile(r'slurm_script: line \d+: +\d+ Killed +"\$\{srun\[@\]\}" ')  # bash's word on its child
_DUE_TO = {
    "TIME LIMIT": (Cause.TIME, "the time limit was reached"),
    "PREEMPTION": (Cause.PREEMPTED, "another job took its nodes"),
    "JOB REQUEUE": (Cause.PREEMPTED, "it was sent back to the queue (scontrol requeue, or a preemption)"),
    "NODE FAILURE": (Cause.NODE, "Slurm lost a node of the job"),
}
_MOST_RANKS = 100_000


@dataclass(frozen=True)
class Death:
    """A task that ended badly before the others were told to end; `order` counts srun's lines."""

    rank: int
    node: str
    how: str
    order: int


@dataclass(frozen=True)
class Ending:
    """What ended a whole job from outside, and when (0: not known)."""

    cause: Cause
    words: str
    node: str = ""
    time: float = 0.0
    certain: bool = True


def deaths(lines: Iterable[str]) -> list[Death]:
    """The tasks that ended badly by themselves, in the order in which srun learned of it.

    One clock and one order for all nodes: better than the times that ranks write by clocks of their own.
    """
    found: list[Death] = []
    for order, line in enumerate(lines):
        if _ABORTED.search(line):
            break
        if match := _TASK.search(line):
            found += [Death(rank, match["node"], match["how"], order) for rank in ranks_of(match["ranks"])]
    return found


def ranks_of(text: str) -> list[int]:
    """Slurm's list of tasks: "0-1,3" is 0, 1, 3."""
    ranks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last.isdigit() or not last):
            ranks += range(int(first), min(int(last or first), int(first) + _MOST_RANKS) + 1)
    return ranks


def lost_nodes(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(match["node"] for line in lines if (match := _NODE_LOST.search(line))))


def warned_before_it_began(attempt: AttemptTrace) -> bool:
    """Whether the warning killed what unpacked the image, so that no rank began."""
    words = (line for rank in attempt.ranks for line in rank.last_words)
    return not any(rank.began for rank in attempt.ranks) and any(map(_WARNED.search, (*attempt.lines, *words)))


def job_ending(attempt: AttemptTrace) -> Ending | None:
    """What slurmstepd and srun say ended this attempt's job; None where they say nothing."""
    if nodes := lost_nodes(attempt.lines):
        return Ending(Cause.NODE, f"Slurm lost node {', '.join(nodes)}", nodes[0])
    if any(_SRUN_KILLED.search(line) for line in attempt.lines):
        words = "srun was killed on the job's first node, by hand or by the kernel, and its ranks went with it"
        return Ending(Cause.KILLED, words, time=attempt.end or 0.0)
    for line in reversed(attempt.job_lines):
        match = _JOB_ENDED.search(line)
        if match is None or not _is_of(attempt, match["job"], match["node"]):
            continue
        # slurmstepd writes local time; nodes and login node keep the same zone nearly everywhere.
        at = time_of(match["at"].encode()) or 0.0
        why = (match["why"] or "").strip()
        if why.startswith("JOB REQUEUE") and attempt.requeued:
            continue  # what followed from its end
        if not why:
            return Ending(Cause.CANCELLED, "it was cancelled", time=at)
        unknown = Cause.UNKNOWN, f"Slurm ended it: {why.lower()}"
        cause, words = next((meaning for begin, meaning in _DUE_TO.items() if why.startswith(begin)), unknown)
        return Ending(cause, words, time=at)
    return None


def _is_of(attempt: AttemptTrace, job: str, node: str) -> bool:
    """Whether a line is this attempt's: a node that was cut off writes its own when a later attempt has begun."""
    nodes = {rank.node for rank in attempt.ranks if rank.node}
    return job == (attempt.job_id or job) and (not nodes or node in nodes)
