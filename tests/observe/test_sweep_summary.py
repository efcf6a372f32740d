"""The summary of a sweep: the best run, and an estimate of the time left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from clusterctl.launcher.observe.attempt import AttemptEvidence
from clusterctl.launcher.observe.measurements import Pace
from clusterctl.launcher.observe.run_record import RunRecord
from clusterctl.launcher.observe.state import Status
from clusterctl.launcher.observe.sweeps import SweepRecord, ranked, summarise
from clusterctl.shared.record.layout import RunDir, SweepDir
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import Cluster, Job

_RECORD = RunRecord(RunDir(Path("/runs/x-0")), 0.0, Job(name="x", workload="reddit"), Cluster(name="site"))
_RUNNING = Status(
    record=_RECORD,
    state=State.TRAINING,
    sure=True,
    job_id=None,
    attempts=(),
    cancelling=False,
    reason="",
    started=None,
    ended=None,
)


def values(metric: str | None, *runs: dict[str, float]) -> list[float]:
    statuses = [replace(_RUNNING, attempts=(AttemptEvidence(number=0, metrics=metrics),)) for metrics in runs]
    return [one.value for one in ranked([_RUNNING, *statuses], metric)]


def test_the_metric_decides_whether_higher_is_better() -> None:
    assert values("loss", {"loss": 2}, {"loss": 1}, {"loss": 3}) == [1, 2, 3]
    assert values("mine", {"mine": 2}, {"mine": 1}, {"loss": 3}) == [2, 1]
    for name in ("val_rmse", "val_error_mine"):
        assert values(None, {name: 2, "loss": 1}, {name: 1, "loss": 2}, {"loss": 0.5}) == [1, 2]
    assert values(None, {"val_score_mine_loss": -2}, {"val_score_mine_loss": 1}) == [1, -2]
    assert values(None, {"val_hits@20": 0.1}, {"val_hits@20": 0.2}) == [0.2, 0.1]


def test_by_default_runs_are_ranked_by_a_score_or_else_by_the_loss() -> None:
    assert values(None, {"loss": 1, "val_auc": 0.5}, {"loss": 3}, {"loss": 2, "val_auc": 0.7}) == [0.7, 0.5]
    assert values(None, {"loss": 1}, {"loss": 3}, {"other": 9}) == [1, 3]
    assert values(None, {"other": 9}) == []


def test_different_scores_are_not_compared_with_each_other() -> None:
    assert values(None, {"val_auc": 0.9}, {"val_accuracy": 0.5}, {"val_accuracy": 0.6}) == [0.6, 0.5]


def test_a_diverged_run_is_never_the_best() -> None:
    assert values("loss", {"loss": float("nan")}, {"loss": 3}, {"loss": float("-inf")}) == [3]


def test_queued_runs_are_assumed_to_take_as_long_as_the_running_ones() -> None:
    record = SweepRecord(SweepDir.of(Path("/runs"), "x"), 0.0, ((),) * 4)
    half = AttemptEvidence(number=0, start=0.0, metrics={"step": 50, "steps": 100}, pace=Pace(1.0, 50.0))
    running, starting = replace(_RUNNING, attempts=(half,)), replace(_RUNNING, state=State.STARTING)
    waiting = replace(_RUNNING, state=State.QUEUED)
    found = summarise(record, [running, starting, waiting, waiting], now=50.0)
    assert found.seconds_left == (50 + 50 + 2 * 100) / 2
    assert found.best is None
