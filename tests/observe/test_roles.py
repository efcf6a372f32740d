"""What is shown of the roles of a run."""

from __future__ import annotations

import pytest

from clusterctl.launcher.observe.rank_events import (
    Again,
    Began,
    Entered,
    Event,
    Exited,
    Ready,
    RoleStatus,
    _state,
    parse_event,
)
from clusterctl.shared.record.states import State

STARTED = (Began(1.0, "host", "node1", 4), Entered(2.0, State.RENDEZVOUS))
RUNS = (*STARTED, Entered(3.0, State.TRAINING))


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ((), "starting"),
        (STARTED, "waiting"),
        (RUNS, "running"),
        ((*RUNS, Ready(4.0)), "ready"),
        ((*RUNS, Ready(4.0), Again(5.0, "killed")), "running"),
        ((*RUNS, Ready(4.0), Again(5.0, "killed"), Ready(6.0)), "ready"),
        ((*RUNS, Exited(7.0, 0)), "finished"),
        ((*RUNS, Ready(4.0), Exited(7.0, 143)), "ended"),
    ],
)
def test_the_state_of_a_rank_is_that_of_its_last_event(events: tuple[Event, ...], state: str) -> None:
    assert _state(events) == state


def test_ranks_in_different_states_are_counted() -> None:
    def summary(**states: int) -> str:
        return RoleStatus("features", (0, 1, 2), (), states, 0).summary

    assert summary(ready=3) == "ready"
    assert summary(ready=2, starting=1) == "2 of 3 ready, 1 starting"


def test_events_of_roles_are_read_as_they_are_written() -> None:
    assert parse_event({"time": 1.5, "event": "ready"}) == Ready(1.5)
    assert parse_event({"time": 1.5, "event": "again", "why": "exited with 3"}) == Again(1.5, "exited with 3")
