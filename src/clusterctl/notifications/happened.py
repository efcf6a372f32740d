"""Which events of a run are worth a notification; pure functions."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.observe.stage import NEVER_STARTS
from clusterctl.runs.stages import Stage
from clusterctl.spec.notify import RunEvent

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from clusterctl.observe.stage import Status


class Happened(NamedTuple):
    """An event and its attempt; for a run that never started, the attempt it did not start."""

    event: RunEvent
    attempt: int

    @property
    def name(self) -> str:
        return f"{self.event}-{self.attempt}"


def happened(status: Status, stalled: Collection[int]) -> Iterator[Happened]:
    """All events so far; `stalled` are the attempts in which the watchdog raised an alarm."""
    for attempt, following in zip_longest(status.attempts, status.attempts[1:]):
        if attempt.number in stalled:
            yield Happened(RunEvent.STALLED, attempt.number)
        # Slurm requeues the same job after a preemption or the loss of a node; a resume is a new job.
        if attempt.requeued or (following is not None and attempt.job_id == following.job_id):
            yield Happened(RunEvent.RESTARTED, attempt.number)
    if (event := _ending(status)) is not None:
        last = status.attempts[-1].number if status.attempts else 0
        yield Happened(event, max(last, status.record.past_attempts))


def _ending(status: Status) -> RunEvent | None:
    """How the run ended; None if it is or may be active, or if somebody cancelled it and so knows."""
    if not status.stage.ended or not status.sure:
        return None
    if status.stage is Stage.FINISHED:
        return RunEvent.FINISHED
    return None if status.stage is Stage.CANCELLED and status.reason != NEVER_STARTS else RunEvent.FAILED
