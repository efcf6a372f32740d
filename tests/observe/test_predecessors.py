"""Dependencies between runs: when they are met, and how run.json records them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.traces import RECORD

from clusterctl.launcher.observe.run_record import Condition, Predecessor, read_predecessors
from clusterctl.launcher.observe.state import Standing, Status, standing
from clusterctl.shared.record.fields import Fields
from clusterctl.shared.record.states import ENDED, State

RUN = "prepare-20260102-030405-00a1"


def status(state: State) -> Status:
    return Status(RECORD, state, True, "12", (), False, "", None, None)


@pytest.mark.parametrize("state", State)
def test_the_state_of_a_run_decides_whether_its_condition_is_met(state: State) -> None:
    found = {condition: standing(condition, status(state)) for condition in Condition}
    if state is State.FINISHED:
        assert set(found.values()) == {Standing.MET}
    elif state in ENDED:
        assert list(found.values()) == [Standing.NEVER, Standing.MET, Standing.MET]
    elif state is State.QUEUED:
        assert set(found.values()) == {Standing.OPEN}
    else:
        assert list(found.values()) == [Standing.OPEN, Standing.OPEN, Standing.MET]


def test_invalid_predecessors_are_dropped_from_a_record() -> None:
    good = {"run": RUN, "condition": "ended"}
    bad: list[object] = [5, {}, {"run": RUN}, {"run": RUN, "condition": "soon"}]
    bad += [{"run": run, "condition": "ended"} for run in ("", "..", "../x-20260102-030405-00a1", f"{RUN}/..", 5)]
    assert read_predecessors(Fields({"after": [*bad, good]})) == (Predecessor(RUN, Condition.ENDED),)
    assert read_predecessors(Fields({"after": good})) == ()
    assert read_predecessors(Fields({})) == ()


@pytest.mark.parametrize(
    ("state", "reason", "shown"),
    [
        (State.QUEUED, "Dependency", f"after {RUN}"),
        (State.QUEUED, "Resources", "Resources"),
        (State.CANCELLED, "DependencyNeverSatisfied", f"never started: after {RUN}"),
    ],
)
def test_the_runs_that_a_run_waits_for_are_named(state: State, reason: str, shown: str) -> None:
    record = replace(RECORD, predecessors=(Predecessor(RUN, Condition.FINISHED), Predecessor(RUN, Condition.ENDED)))
    assert replace(status(state), record=record, reason=reason).held_up_by == shown
    assert replace(status(state), reason=reason).held_up_by == reason


def test_several_predecessors_are_shown_as_the_first_and_a_count() -> None:
    runs = (RUN, "fetch-20260102-030405-00a2", "fetch-20260102-030405-00a3")
    record = replace(RECORD, predecessors=tuple(Predecessor(run, Condition.ENDED) for run in runs))
    waiting = replace(status(State.QUEUED), record=record, reason="Dependency")
    assert waiting.held_up_by == f"after {RUN} and 2 more"
