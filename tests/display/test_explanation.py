"""What `clusterctl why` prints."""

from __future__ import annotations

import pytest
from support.traces import attempt, trace

from clusterctl.launcher.diagnosis.diagnose import judge
from clusterctl.launcher.display.explanation import explanation
from clusterctl.launcher.observe.run_record import Cancellation
from clusterctl.shared.record.states import State


@pytest.mark.parametrize(
    ("state", "head"),
    [(State.FINISHED, "finished"), (State.CANCELLED, "cancelled"), (State.FAILED, "failed: cancelled")],
)
def test_nothing_is_printed_twice(state: State, head: str) -> None:
    ended = trace(attempt(signal="TERM"), state=state, cancelled=Cancellation(1.0, "ada@login1"))
    first, *_ = explanation(judge(ended))
    assert first == f"cora-20260102-030405-00a1 {head}"
