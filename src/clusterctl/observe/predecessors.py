"""The runs that a run waits for, and what their stages mean for it: pure rules."""

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
    """What a predecessor has to have done."""

    FINISHED = "finished"
    ENDED = "ended"
    STARTED = "started"

    @property
    def infinitive(self) -> str:
        """For `it waits for another run to ...`."""
        return {"finished": "finish", "ended": "end", "started": "start"}[self]


class Predecessor(NamedTuple):
    """A run or a sweep, by its id, that a run of the same folder waits for."""

    run: str
    condition: Condition


class Standing(Enum):
    MET = "met"
    OPEN = "open"
    NEVER = "never"


def standing(condition: Condition, status: Status) -> Standing:
    """Whether the run of `status` has done what is waited for, as Slurm judges it: one that was cancelled has started.

    A run that is between two starts has not ended, and its next start is waited for.
    """
    stage = status.stage
    if stage is Stage.FINISHED:
        return Standing.MET
    if stage.ended:
        return Standing.NEVER if condition is Condition.FINISHED else Standing.MET
    return Standing.MET if condition is Condition.STARTED and stage is not Stage.QUEUED else Standing.OPEN


def standing_of_all(condition: Condition, statuses: Iterable[Status]) -> Standing:
    """As `standing`, of all runs of a sweep: one that can never do it decides."""
    found = {standing(condition, status) for status in statuses}
    return Standing.NEVER if Standing.NEVER in found else Standing.OPEN if Standing.OPEN in found else Standing.MET


def read_predecessors(record: Fields) -> tuple[Predecessor, ...]:
    """Those in run.json; what is none is dropped: an id becomes the name of a folder."""
    found = ((one.text("run"), one.member("condition", Condition)) for one in record.tables("after"))
    return tuple(Predecessor(run, condition) for run, condition in found if condition and is_run_id(run))
