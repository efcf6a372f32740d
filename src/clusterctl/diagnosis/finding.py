"""One finding of `clusterctl why` about a run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterctl.errors import Cause

CERTAIN, LIKELY, UNSURE = "certain", "likely", "unknown"


class Evidence(IntEnum):
    """Where the evidence for a cause is, the strongest first.

    Programs log errors that they survive, so a known phrase somewhere in their output never makes a finding certain.
    """

    RECORDED = 0  # a signal, an exit code with its mark, an exception recorded by the task, a line of Slurm's own
    LAST_WORDS = 1  # what a rank's stderr ends with
    ELSEWHERE = 2  # a known phrase before that
    NOTHING = 3  # only that it ended

    @property
    def may_be_certain(self) -> bool:
        return self in _MAY_BE_CERTAIN


_MAY_BE_CERTAIN = frozenset({Evidence.RECORDED, Evidence.LAST_WORDS})


@dataclass(frozen=True)
class Consequence:
    """What followed from the first cause on one rank."""

    rank: int
    node: str
    cause: str


@dataclass(frozen=True)
class Finding:
    """A cause, where and when it occurred, and what followed from it. `str(finding)` is a one-line summary.

    `certainty` is "certain", "likely" (consistent with the evidence, which allows other explanations) or "unknown".
    `hint` is what to do, in words.
    """

    cause_class: Cause
    cause: str
    certainty: str = CERTAIN
    attempt: int | None = None
    rank: int | None = None
    node: str = ""
    stage: str = ""
    step: int | None = None
    traceback: str = ""
    hint: str = ""
    facts: tuple[str, ...] = ()
    secondary: tuple[Consequence, ...] = ()

    @property
    def place(self) -> str:
        """Where it occurred: `rank 2 on node2`, or the node; empty if neither is known."""
        node = f" on {self.node}" if self.node else ""
        return f"rank {self.rank}{node}" if self.rank is not None else self.node

    def __str__(self) -> str:
        place = f"{self.place}: " if self.place else ""
        doubt = {LIKELY: " (likely)", UNSURE: " (uncertain)"}.get(self.certainty, "")
        return f"{place}{self.cause}{doubt}"
