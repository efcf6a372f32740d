"""What `why` reports about a node whose writer has ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.recorded import write_beat

from clusterctl.launcher.diagnosis.diagnose import diagnose_status
from clusterctl.launcher.observe.attempt import read_evidence
from clusterctl.launcher.observe.run_record import read_record
from clusterctl.launcher.observe.state import judge
from clusterctl.shared.errors import Cause
from clusterctl.shared.record.heartbeats import Beat
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State

Fabricate = Callable[..., RunDir]
NOW = 5000.0


def began(rank: int) -> dict[str, object]:
    return {"rank": rank, "time": 4000, "event": "began", "host": f"node{rank // 2}", "node": f"node{rank // 2}"}


@pytest.mark.parametrize(
    ("error", "age", "cause", "words"),
    [
        ("", 0.0, Cause.HEALTHY, "the writer of node1 ended and was restarted"),
        ("Cannot allocate memory", 60.0, Cause.NODE, "not restarted: Cannot allocate memory"),
    ],
)
def test_an_ended_node_writer_is_reported(
    fabricate: Fabricate, error: str, age: float, cause: Cause, words: str
) -> None:
    writer = {"rank": 2, "time": 4990, "event": "writer", **({"error": error} if error else {})}
    files = {
        "attempts/0/host.json": {"start": 4000},
        "attempts/0/nodes/00000.events.jsonl": [began(0), began(1)],
        "attempts/0/nodes/00001.events.jsonl": [began(2), began(3), writer],
    }
    run = fabricate(files=files)
    for rank in range(4):
        time = NOW - age * (rank > 1)
        beat = Beat(time, "training", 4100, 40, time - 0.1, 0.1, 0.2, host=f"node{rank // 2}", pid=rank + 1)
        write_beat(run.attempt(0), rank, beat, node=rank // 2)
    status = replace(judge(read_evidence(read_record(run)), 99.0), state=State.TRAINING)
    found = diagnose_status(status, clock=lambda: NOW, sleep=lambda seconds: None).headline
    assert found.cause_class is cause
    assert words in " ".join((found.cause, *found.facts))
