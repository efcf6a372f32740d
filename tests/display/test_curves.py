"""Curves of a link prediction and of a program's own metrics, in the monitor and the report."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.launcher.display.curves import drawn_curves, is_flat, robust
from clusterctl.launcher.display.monitor.panes import MonitorView, Pane, frame
from clusterctl.launcher.display.report.page import examine, page
from clusterctl.launcher.observe.history import History, Point
from clusterctl.launcher.observe.overview import Overview

START, STEPS = 1_000_030.0, 400


def taobao_files() -> dict[str, Any]:
    """The files of a finished link prediction: AUC instead of accuracy, tested edges, a loss that starts high."""
    host = {"attempt": 0, "job_id": "7", "nodes": "node[0-1]", "start": START, "end": START + 500, "exit_code": 0}
    events = [{"time": START + 9, "event": "stage", "stage": "training", "epoch": 1}]
    return {
        "submission.json": {"job_id": "7"},
        "finished.json": {"time": START + 500, "attempt": 0},
        "attempts/0/host.json": host,
        "attempts/0/events/rank_00000.jsonl": events,
        "attempts/0/metrics.jsonl": [line for step in range(1, STEPS + 1) for line in _lines(step)] + [_best()],
    }


def _lines(step: int) -> list[dict[str, Any]]:
    counts = {"step": step, "steps": STEPS, "epochs": 20, "classes": 2, "epoch": (step - 1) // 20 + 1}
    loss = 0.3 + 0.39 * math.exp(-step / 90) + 40 * math.exp(-step) + 0.005 * math.sin(step)
    seconds = {"seconds": 1.0, "sampling": 0.3, "gathering": 0.0, "compute": 0.5, "communication": 0.2}
    lines = [{"time": START + 10 + step, **counts, "loss": loss, **seconds}]
    if step % 20 == 0:
        auc = {"val_auc": 0.92 - 0.3 * math.exp(-step / 100)}
        last = {"test_auc": 0.9112, "test_edges": 16_691} if step == STEPS else {}
        lines.append({"time": START + 10 + step, **counts, **auc, **last, "evaluation_seconds": 0.4})
    return lines


def _best() -> dict[str, Any]:
    return {"time": START + 499, "best_possible_auc": 0.9344}


def titles(history: History) -> list[str]:
    history.update()
    return [drawn.title for drawn in drawn_curves(history)]


def test_the_auc_is_drawn_and_the_number_of_tested_edges_is_not(fabricate) -> None:
    assert titles(History(fabricate(files=taobao_files()))) == ["loss", "val AUC", "steps per second"]


def test_the_monitor_shows_the_auc(fabricate) -> None:
    run = fabricate(files=taobao_files())
    shown = frame(MonitorView(Overview(run.path.parent).look()), 100, 30, Pane.TRAINING).plain
    assert "val AUC 0.9145  test AUC 0.9112" in shown
    assert "400/400" in shown.replace(" ", "")
    assert "edges" not in shown
    assert "▲" in shown  # the loss of the first step


def test_the_report_shows_the_auc_and_the_best_possible_one(fabricate) -> None:
    run = fabricate(files=taobao_files())
    text = page(examine(run, run.path))
    for name, value in (("test AUC", "0.9112"), ("best possible AUC", "0.9344"), ("tested on", "16691 edges")):
        assert f"<dt>{name}</dt><dd>{value}</dd>" in text
    assert "<figcaption>val AUC<span>  last 0.9145, best 0.9145</span>" in text
    assert "<figcaption>loss<span>  last 0.3003, best 0.3001</span>" in text
    assert text.count('class="outside"') >= 1
    assert "Triangles mark values beyond the axis" in text


def test_a_programs_own_metrics_follow_the_known_ones(fabricate) -> None:
    line = {"time": 1.0, "step": 1, "lr": 0.1, "train_accuracy": 0.5, "loss": 1.0, "samples_per_second": 9.0}
    lines = [line, line | {"step": 2, "time": 2.0, "seconds": 0.5}]
    run = fabricate(files={"attempts/0/metrics.jsonl": lines})
    assert titles(History(run)) == ["loss", "samples per second", "lr", "train accuracy"]


def test_an_error_beyond_one_is_drawn_beside_the_loss_and_the_lowest_is_the_best(fabricate) -> None:
    files = taobao_files()
    for line in files["attempts/0/metrics.jsonl"]:
        if (auc := line.pop("val_auc", None)) is not None:
            line |= {"val_rmse": 120 * (1.1 - auc), "train_rmse": 100 * (1.1 - auc), "val_extra": 1.0}
        if line.pop("test_auc", None) is not None:
            line["test_rmse"] = 23.4567
    run = fabricate(files=files)
    history = History(run)
    assert titles(history)[:2] == ["loss", "val rmse"]
    drawn = {curve.title: curve for curve in drawn_curves(history)}
    assert drawn["val rmse"].best == min(point.low for point in drawn["val rmse"].curve.points()) > 20
    text = page(examine(run, run.path))
    assert "<dt>test rmse</dt><dd>23.4567</dd>" in text
    assert "<dt>val rmse</dt><dd>22.2" in text


def curve(values: list[float]) -> list[Point]:
    return [Point(float(x), value, value, value) for x, value in enumerate(values)]


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=60))
def test_an_axis_is_in_order_and_never_enlarges_noise(values: list[float]) -> None:
    points = curve(values)
    low, high = robust(points)
    assert low <= high
    if high > low:
        assert high - low >= 0.045 * max(abs(low), abs(high))


@pytest.mark.parametrize(
    ("values", "flat"),
    [
        ([0.01] * 40, True),
        ([0.3, 0.3001], True),
        ([0.3, 0.301], False),
        ([0.0, 0.0], True),
        ([5.0], False),
        ([-1.0, 1.0], False),
        ([1e300, 1e300], True),
    ],
)
def test_a_curve_that_hardly_changes_is_flat(values: list[float], flat: bool) -> None:
    assert is_flat(curve(values)) is flat
