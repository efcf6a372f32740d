"""Runs in the order of a column or a metric."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from clusterctl.launcher.observe.attempt import AttemptEvidence
from clusterctl.launcher.observe.run_record import RunRecord
from clusterctl.launcher.observe.state import Status
from clusterctl.launcher.observe.status import SORT_COLUMNS, in_order
from clusterctl.shared.errors import UsageError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import Cluster, Job, RedditTrain, Resources

NOW = 1000.0


def status(name: str, age: float = 10.0, nodes: int = 1, state: State = State.TRAINING, **metrics: float) -> Status:
    resources = Resources(nodes=nodes, gpus_per_node=1)
    job = Job(name=name, workload="reddit", resources=resources, train=RedditTrain())
    record = RunRecord(RunDir(Path("/runs") / name), NOW - age, job, Cluster(name="site"))
    attempt = AttemptEvidence(number=0, start=NOW - age, metrics=metrics)
    return Status(record, state, True, "1", (attempt,), False, "", NOW - age, None)


RUNS = [
    status("c", 30.0, 2, State.QUEUED, loss=0.5, val_accuracy=0.7, own=3.0),
    status("a", 10.0, 1, State.FINISHED, loss=0.25, step=50, steps=100),
    status("b", 20.0, 4, loss=math.nan, val_accuracy=0.9, step=10, steps=100, own=5.0),
]


@pytest.mark.parametrize(
    ("column", "order"),
    [
        ("run", "abc"),
        ("age", "abc"),
        ("state", "cba"),
        ("loss", "acb"),  # lower is better; NaN is no value
        ("val", "bca"),
        ("progress", "abc"),
        ("tasks", "bca"),
        ("gpu-h", "bca"),
        ("own", "bca"),
        ("test", "cab"),  # none has one: unchanged
    ],
)
def test_the_best_the_newest_or_the_largest_comes_first(column: str, order: str) -> None:
    assert "".join(one.record.run.id for one in in_order(RUNS, column, NOW)) == order


def test_every_column_can_be_sorted_by_even_without_values() -> None:
    bare = [status("b"), status("a")]
    for column in SORT_COLUMNS:
        assert len(in_order(bare, column, NOW)) == 2
        assert in_order([], column, NOW) == []


def test_a_name_that_nothing_has_is_refused_with_those_that_exist() -> None:
    with pytest.raises(UsageError) as error:
        in_order(RUNS, "accuracy", NOW)
    assert error.value.message == "nothing to sort by: accuracy"
    assert "own" in error.value.hint
    assert "gpu-h" in error.value.hint
