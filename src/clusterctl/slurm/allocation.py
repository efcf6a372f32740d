"""Allocations and their steps, as squeue shows them: what warm runs are started in, watched and ended by."""

from __future__ import annotations

import re
from dataclasses import dataclass

SEPARATOR = "\x1f"
FIELDS = ("JobID", "State", "NumNodes", "EndTime", "tres-per-node", "NodeList")
FORMAT = ",".join(f"{field}:{SEPARATOR}" for field in FIELDS)
STEP_FORMAT = f"%i{SEPARATOR}%j"
_STEP = re.compile(r"\d+\.[a-z0-9+]+", re.ASCII)
_GPUS = re.compile(r"gpu(?::[^:,()]+)??(?::(\d+))?", re.ASCII)


@dataclass(frozen=True)
class Allocation:
    """One job of this user that holds nodes, or waits for them. `end_time` is in seconds since the epoch."""

    job_id: str
    state: str
    nodes: int
    end_time: int | None
    gpus_per_node: int | None  # None: it did not ask for GPUs by the node
    node_list: str

    @property
    def is_held(self) -> bool:
        return self.state == "RUNNING"


@dataclass(frozen=True)
class Step:
    """One step of a job: its full number, such as 123.4, and its name."""

    id: str
    name: str


def question(job_id: str) -> tuple[str, ...]:
    """The one job, and only if it is this user's own."""
    return ("squeue", "--me", "-h", "-j", job_id, "-O", FORMAT)


def steps_question(job_id: str) -> tuple[str, ...]:
    """The steps of one job that run now."""
    return ("squeue", "--me", "-h", "-s", "-j", job_id, "-o", STEP_FORMAT)


def parse_allocation(text: str) -> Allocation | None:
    """Read the answer to `question`; None where this user has no such job."""
    for line in text.split("\n"):
        values = line.split(SEPARATOR)
        if len(values) > len(FIELDS) and values[0].isdigit():
            job_id, state, nodes, end, tres, node_list = values[: len(FIELDS)]
            return Allocation(job_id, state, _number(nodes) or 0, _number(end), _gpus(tres), node_list)
    return None


def parse_steps(text: str) -> tuple[Step, ...]:
    """Read the answer to `steps_question`; lines that squeue did not write are skipped."""
    parted = (line.partition(SEPARATOR) for line in text.split("\n"))
    return tuple(Step(number, name) for number, _, name in parted if _STEP.fullmatch(number))


def _gpus(tres: str) -> int | None:
    """`gres:gpu:a100:4` of 22.05, `gres/gpu:4` of later versions."""
    for word in tres.split(","):
        if match := _GPUS.fullmatch(re.sub(r"^gres[:/]", "", word)):
            return int(match[1] or 1)
    return None


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
