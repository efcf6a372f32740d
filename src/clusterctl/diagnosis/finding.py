"""One finding of `clusterctl why` about a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clusterctl.errors import Cause

CERTAIN, LIKELY, UNSURE = "certain", "likely", "unknown"


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
