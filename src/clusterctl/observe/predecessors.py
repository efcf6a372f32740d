"""The runs that a run depends on, and what their stages mean for it; pure functions."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.observe.run_names import is_run_id
from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.observe.stage import Status
    from clusterctl.runs.fields import Fields


class Condition(StrEnum):
    """What a predecessor must have done."""

    FINISHED = "finished"
    ENDED = "ended"
    STARTED = "started"

    @property
    def infinitive(self) -> str:
        """For `waiting for another run to ...`."""
        return {"finished": "finish", "ended": "end", "started": "start"}[self]


class Predecessor(NamedTuple):
    """A run or sweep, by its id, that a run in the same folder depends on."""

    run: str
    condition: Condition


class Standing(Enum):
    MET = "met"
    OPEN = "open"
    NEVER = "never"


def standing(condition: Condition, status: Status) -> Standing:
    """Whether the run of `status` meets `condition`, by Slurm's rules: a cancelled run counts as started.

    A run between two starts has not ended: its next start counts.
    """
    stage = status.stage
    if stage is Stage.FINISHED:
        return Standing.MET
    if stage.ended:
        return Standing.NEVER if condition is Condition.FINISHED else Standing.MET
    return Standing.MET if condition is Condition.STARTED and stage is not Stage.QUEUED else Standing.OPEN


def standing_of_all(condition: Condition, statuses: Iterable[Status]) -> Standing:
    """Like `standing`, for all runs of a sweep: NEVER if any run can never meet it."""
    found = {standing(condition, status) for status in statuses}
    return Standing.NEVER if Standing.NEVER in found else Standing.OPEN if Standing.OPEN in found else Standing.MET


def read_predecessors(record: Fields) -> tuple[Predecessor, ...]:
    """The predecessors in run.json; invalid ids are dropped, since an id becomes a folder name."""
    found = ((one.text("run"), one.member("condition", Condition)) for one in record.tables("after"))
    return tuple(Predecessor(run, condition) for run, condition in found if condition and is_run_id(run))
