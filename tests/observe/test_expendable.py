"""Ended runs that may be removed, and why others stay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.launcher.api.clean import best_runs, judged
from clusterctl.launcher.observe.attempt import AttemptEvidence
from clusterctl.launcher.observe.run_record import Condition, Predecessor, RunRecord
from clusterctl.launcher.observe.state import Status
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import Cluster, Job, RedditTrain

NOW, DAY = 100 * 86400.0, 86400.0


def status(name: str, days: float, state: State = State.FINISHED, **metrics: float) -> Status:
    """A run of job "cora" that ended `days` ago."""
    ended = NOW - days * DAY
    job = Job(name="cora", workload="reddit", train=RedditTrain())
    record = RunRecord(RunDir(Path("/runs", name)), ended - DAY, job, Cluster(name="site"))
    attempt = AttemptEvidence(number=0, start=ended - DAY, end=ended, exit_code=0, metrics=metrics)
    over = ended if state.ended else None
    return Status(record, state, True, "7", (attempt,), False, "", ended - DAY, over)


def stays(*statuses: Status, days: float = 30, keep_best: bool = False) -> dict[str, str]:
    found = judged(statuses, days * DAY, NOW, keep_best=keep_best)
    return {one.status.record.run.id: one.stays for one in found}


def test_only_old_runs_that_have_ended_are_candidates() -> None:
    assert stays(status("old", 31), status("young", 29), status("runs", 90, State.TRAINING)) == {"old": ""}
    assert stays(status("queued", 90, State.QUEUED), status("lost", 90, State.LOST)) == {"lost": ""}


def test_a_run_stays_while_slurm_does_not_answer() -> None:
    assert "Slurm" in stays(replace(status("old", 31), sure=False))["old"]
    assert "Slurm" in stays(replace(status("old", 31, State.TRAINING), sure=False))["old"]


def test_another_users_run_is_kept() -> None:
    old = status("old", 31)
    assert stays(replace(old, record=replace(old.record, is_ours=False))) == {"old": "belongs to another user"}


def test_a_run_stays_while_a_queued_run_depends_on_it() -> None:
    waiting = status("waiting", 0, State.QUEUED)
    record = replace(waiting.record, predecessors=(Predecessor("old", Condition.FINISHED),))
    assert stays(status("old", 31), replace(waiting, record=record)) == {"old": "waiting is waiting for it"}
    over = replace(waiting, record=record, state=State.CANCELLED, ended=NOW - DAY)
    assert stays(status("old", 31), over) == {"old": ""}


def test_a_sweep_stays_while_a_queued_run_depends_on_it() -> None:
    sweep = "cora-20260102-030405-00a1"
    waiting = status("waiting", 0, State.QUEUED)
    record = replace(waiting.record, predecessors=(Predecessor(sweep, Condition.FINISHED),))
    found = stays(status(f"{sweep}.0", 31), status("other", 31), replace(waiting, record=record))
    assert found == {f"{sweep}.0": "waiting is waiting for it", "other": ""}


def test_a_run_is_active_until_its_batch_script_has_ended() -> None:
    just = status("just", 0.0001)
    under_way = replace(just, attempts=(replace(just.attempts[0], exit_code=None, end=None),))
    assert stays(under_way, days=0) == {}
    assert stays(just, days=0) == {"just": ""}


def test_the_best_run_of_each_job_stays_counting_recent_runs_too() -> None:
    good, bad = status("good", 40, val_accuracy=0.9, loss=5.0), status("bad", 31, val_accuracy=0.8, loss=1.0)
    assert stays(good, bad, keep_best=True) == {"good": "the best of cora: val accuracy 0.9000", "bad": ""}
    assert stays(good, bad, status("best", 1, val_accuracy=0.95), keep_best=True) == {"good": "", "bad": ""}
    other = replace(bad, record=replace(bad.record, job=replace(bad.record.job, name="other")))
    assert stays(good, other, keep_best=True)["bad"]


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"val_auc": 0.7}, {"val_auc": 0.6}),
        ({"test_accuracy": 0.7, "loss": 9.0}, {"test_accuracy": 0.6, "loss": 1.0}),
        ({"mse": 1.0, "loss": 9.0}, {"mse": 2.0, "loss": 1.0}),
        ({"f1": 0.7}, {"f1": 0.6}),
        ({"loss": 1.0}, {"loss": 2.0}),
        ({"loss": 2.0}, {"loss": float("nan")}),
        ({"val_accuracy": 0.1}, {"loss": 0.0}),
        ({"loss": 3.0, "temperature": 1.0}, {"loss": 4.0, "temperature": 0.0}),
    ],
)
def test_the_best_is_found_by_scores_then_own_metrics_then_the_loss(
    better: dict[str, float], worse: dict[str, float]
) -> None:
    for runs in (
        [status("a", 2, **better), status("b", 1, **worse)],
        [status("b", 2, **worse), status("a", 1, **better)],
    ):
        assert [best.status.record.run.id for best in best_runs(runs)] == ["a"]


def test_no_run_is_the_best_without_a_metric_or_before_its_end() -> None:
    assert best_runs([status("a", 1), status("b", 1, State.TRAINING, loss=1.0)]) == []
