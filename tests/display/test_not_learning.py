"""A run that trains but does not learn: noted on every screen, and not a failure."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from clusterctl.launcher import cli
from clusterctl.launcher.api import json_output
from clusterctl.launcher.diagnosis.diagnose import diagnose
from clusterctl.launcher.diagnosis.efficiency import single_steps
from clusterctl.launcher.display.monitor.panes import MonitorView, frame
from clusterctl.launcher.display.report.page import examine, page
from clusterctl.launcher.display.runs_table import RunsTable, row_of
from clusterctl.launcher.observe.overview import Overview
from clusterctl.launcher.observe.state import Status
from clusterctl.launcher.observe.status import Listing, statuses_of
from clusterctl.shared.errors import Cause
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.states import State
from clusterctl.shared.spec import RedditTrain

TEXT = "each epoch is a single step: the 8 ranks share a batch of 1,024, the whole training set"
SENTENCE = "the training is not learning: the loss is NaN since step 50"


def table(status: Status, now: float, width: int | None = None) -> str:
    return RunsTable(Listing(now, (row_of(status, now),)), width).plain


@pytest.fixture
def run(fabricate) -> RunDir:
    """A finished run whose loss is NaN from step 50 on."""
    host: dict[str, Any] = {"attempt": 0, "job_id": "1", "nodes": "n1", "start": 1_000_001, "end": 1_000_400}
    counts = {"steps": 300, "epoch": 1, "epochs": 1, "classes": 10}
    losses = [2.3 - step / 100 if step < 50 else math.nan for step in range(1, 301)]
    lines = [{"time": 1_000_010.0 + i, "step": i, **counts, "loss": loss} for i, loss in enumerate(losses, start=1)]
    finished = {"time": 1_000_400.0, "attempt": 0}
    host |= {"exit_code": 0}
    return fabricate(files={"attempts/0/host.json": host, "finished.json": finished, "attempts/0/metrics.jsonl": lines})


def test_status_notes_it_and_the_run_stays_finished(run: RunDir) -> None:
    (status,) = statuses_of([run]).statuses
    assert (status.state, status.exit_code) == (State.FINISHED, 0)
    assert "finished" in (
        line := RunsTable(Listing(1_000_500.0, (row_of(status, 1_000_500.0),)), 200).plain.splitlines()[1]
    )
    assert line.endswith("not learning: loss is NaN")


def test_why_shows_since_when_and_what_to_try(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLUSTERCTL_RUNS", str(run.path.parent))
    assert cli.run(["why", run.id]) == 0
    shown = capsys.readouterr().out
    assert f"{run.id} finished" in shown
    assert SENTENCE in shown
    assert "hint: lower train.lr" in shown


def test_it_comes_after_the_outcome_of_the_run(run: RunDir) -> None:
    first, second = (found := diagnose(run)).findings
    assert (first.cause_class, second.cause_class) == (Cause.FINISHED, Cause.NOT_LEARNING)
    assert str(second) == f"{SENTENCE} (likely)"
    assert [other["class"] for other in json_output.why(found)["others"]] == ["not-learning"]


def test_the_monitor_and_the_report_show_it(run: RunDir) -> None:
    view = MonitorView(Overview(run.path.parent).look())
    console = Console(width=200)
    assert SENTENCE in frame(view, console.width, 60).plain
    assert f'<p class="waits">T{SENTENCE[1:]}' in page(examine(run, run.path))


def test_single_step_epochs_are_noted_if_caused_by_the_number_of_ranks(statuses: list[Status]) -> None:
    finished = statuses[2]
    (attempt,) = finished.attempts

    def noted(global_batch_size: int | None = None, **counts: int) -> bool:
        train = RedditTrain(batch_size=128, global_batch_size=global_batch_size)
        job = replace(finished.record.job, train=train)
        metrics = {**attempt.metrics, "steps": 20, "epochs": 20, **counts}
        attempts = (replace(attempt, metrics=metrics),)
        shown = replace(finished, record=replace(finished.record, job=job), attempts=attempts)
        found = single_steps(shown) == TEXT
        assert (
            "1 step per epoch" in RunsTable(Listing(1_000_000.0, (row_of(shown, 1_000_000.0),)), None).plain
        ) == found
        return found

    assert noted()
    assert noted(steps=200, folds=10)
    assert not noted(steps=40)
    assert not noted(global_batch_size=4096), "requested by the user"


def test_why_lists_single_step_epochs_among_the_facts(fabricate) -> None:
    lines = [{"time": 1_000_010.0, "step": 3, "steps": 3, "epoch": 3, "epochs": 3, "loss": 0.1}]
    finished = {"time": 1_000_400.0, "attempt": 0}
    host: dict[str, Any] = {"attempt": 0, "job_id": "1", "nodes": "n1", "start": 1_000_001, "end": 1_000_400}
    host |= {"exit_code": 0}
    files = {"attempts/0/host.json": host, "finished.json": finished, "attempts/0/metrics.jsonl": lines}
    fact = next(fact for fact in diagnose(fabricate(files=files)).headline.facts if "single step" in fact)
    assert fact.endswith("set train.global_batch_size instead of train.batch_size")
