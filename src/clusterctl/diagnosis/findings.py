"""What `clusterctl why` has found out about a run, and how it reads as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterctl.errors import Cause
    from clusterctl.observe.stage import Status

SCHEMA_VERSION = 1
CERTAIN, LIKELY, UNSURE = "certain", "likely", "unknown"


@dataclass(frozen=True)
class Consequence:
    """What followed from the first cause on one rank."""

    rank: int
    node: str
    cause: str


@dataclass(frozen=True)
class Past:
    """An earlier attempt, and why it ended."""

    attempt: int
    cause_class: Cause
    cause: str


@dataclass(frozen=True)
class Findings:
    """The first cause, where and when it was, what followed, and what to type next.

    `certainty` is "certain", "likely" (the evidence fits, and leaves other readings open) or "unknown". `unknown` says
    what could not be read. `hint` is what to do, in words.
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
    commands: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    history: tuple[Past, ...] = ()

    @property
    def place(self) -> str:
        """Where it was: `rank 2 on node2`; empty where no rank is to blame."""
        node = f" on {self.node}" if self.node else ""
        return f"rank {self.rank}{node}" if self.rank is not None else self.node


def to_json(status: Status, findings: Findings) -> dict[str, Any]:
    """What `why -o json` prints."""
    return {
        "schema_version": SCHEMA_VERSION,
        "id": status.record.run.id,
        "run_stage": status.stage.value,
        "class": findings.cause_class.value,
        "certainty": findings.certainty,
        "attempt": findings.attempt,
        "rank": findings.rank,
        "node": findings.node or None,
        "stage": findings.stage or None,
        "step": findings.step,
        "cause": findings.cause,
        "traceback": findings.traceback or None,
        "hint": findings.hint or None,
        "facts": list(findings.facts),
        "secondary": [asdict(consequence) for consequence in findings.secondary],
        "commands": list(findings.commands),
        "unknown": list(findings.unknown),
        "history": [
            {"attempt": past.attempt, "class": past.cause_class.value, "cause": past.cause} for past in findings.history
        ],
    }
