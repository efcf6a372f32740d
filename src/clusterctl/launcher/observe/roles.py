"""The roles of one run: where each is, and what its ranks are doing, from the events of the newest attempt."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.launcher.observe.rank_events import Again, Began, Entered, Exited, Ready, last_events
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.launcher.observe.rank_events import Event
    from clusterctl.launcher.observe.run_record import RunRecord


@dataclass(frozen=True)
class RoleStatus:
    """One role: its ranks in the job, the nodes that they have started on, how many are in which state, restarts.

    The states are "starting", "waiting" (for the roles that it needs), "running", "ready", "finished" and "ended".
    """

    name: str
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    states: dict[str, int]
    restarts: int

    @property
    def summary(self) -> str:
        """The states in words: `ready`, or `1 of 2 ready, 1 starting`."""
        if len(self.states) == 1:
            return next(iter(self.states))
        first, *others = (f"{count} {state}" for state, count in self.states.items())
        return ", ".join([first.replace(" ", f" of {len(self.ranks)} ", 1), *others])


def role_statuses(record: RunRecord) -> tuple[RoleStatus, ...]:
    """The roles of a run in the order of its job file; none for a job with a single program."""
    seated, attempts = record.seating, record.run.attempts()
    if seated is None:
        return ()
    events = last_events(attempts[-1])[0] if attempts else {}
    found = []
    for name in record.job.role:
        ranks = seated.ranks_of(name)
        of_role = [events.get(rank, []) for rank in ranks]
        began = (event for one in of_role for event in one if isinstance(event, Began))
        found.append(
            RoleStatus(
                name,
                tuple(ranks),
                tuple(dict.fromkeys(event.node for event in began)),
                dict(Counter(map(_state, of_role)).most_common()),
                sum(isinstance(event, Again) for one in of_role for event in one),
            )
        )
    return tuple(found)


def _state(events: Iterable[Event]) -> str:
    state = "starting"
    for event in events:
        match event:
            case Entered(_, State.RENDEZVOUS):
                state = "waiting"
            case Entered(_, State.TRAINING) | Again():
                state = "running"
            case Ready():
                state = "ready"
            case Exited(_, code):
                state = "finished" if code == 0 else "ended"
    return state
