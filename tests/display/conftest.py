"""Statuses to show."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from clusterctl.launcher.observe.attempt import AttemptEvidence
from clusterctl.launcher.observe.measurements import Pace
from clusterctl.launcher.observe.run_record import RunRecord
from clusterctl.launcher.observe.state import Status
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import Cluster, Job, RedditTrain, Resources

NOW = 1_000_000.0


def status(
    run: str, state: State, *, sure: bool = True, reason: str = "", age: float = 600.0, **attempt: object
) -> Status:
    job = Job(name="cora", workload="reddit", resources=Resources(nodes=2, tasks_per_node=4), train=RedditTrain())
    last = AttemptEvidence(number=0, start=NOW - age + 5, **attempt) if attempt else None  # type: ignore[arg-type]
    return Status(
        record=RunRecord(RunDir(Path("/runs") / run), NOW - age, job, Cluster(name="site")),
        state=state,
        sure=sure,
        job_id="1234",
        attempts=(last,) if last else (),
        cancelling=False,
        reason=reason,
        started=last.start if last else None,
        ended=NOW - 60 if state.ended else None,
    )


TRAINING = {
    "step": 130,
    "steps": 2600,
    "epoch": 1,
    "epochs": 20,
    "loss": 0.51234,
    "val_accuracy": 0.8125,
    "nodes_per_second": 35_210,
}
FINISHED = TRAINING | {"step": 2600, "epoch": 20, "loss": 0.0123, "test_accuracy": 0.88512, "test_nodes": 1000}


@pytest.fixture
def statuses() -> list[Status]:
    return [
        status("cora-20260102-030405-00a1", State.QUEUED, reason="Resources"),
        status(
            "cora-20260102-030404-00a1",
            State.TRAINING,
            metrics=TRAINING,
            nodes="node[1-2]",
            pace=Pace(4.0, NOW - 1),
            gpu=87.4,
        ),
        status("cora-20260101-030405-00a1", State.FINISHED, age=90_000, metrics=FINISHED, exit_code=0),
        status("a-rather-long-name-20260101-030405-00a1", State.FAILED, metrics={}, exit_code=137),
        status("cora-20251231-235959-00a1", State.QUEUED, sure=False),
    ]


@pytest.fixture
def console() -> Callable[..., tuple[Console, StringIO]]:
    def make(width: int = 80, **options: object) -> tuple[Console, StringIO]:
        file = StringIO()
        return Console(file=file, width=width, highlight=False, markup=False, emoji=False, **options), file  # type: ignore[arg-type]

    return make
