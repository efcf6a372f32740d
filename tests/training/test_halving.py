"""Early stopping in a sweep: each run decides from what the others have written so far."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.engine.task.task import Task
from clusterctl.engine.training.loop import Halving
from clusterctl.shared.record.layout import RunDir

SWEEP = "cora-20260101-000000-aaaa"


@pytest.fixture
def sweep(lone_task: Task, tmp_path: Path) -> list[Halving]:
    """One `Halving` per run of a sweep, deciding from epoch 2 on."""
    tasks = [replace(lone_task, attempt=RunDir(tmp_path / f"{SWEEP}.{place}").attempt(0)) for place in range(6)]
    return [Halving(2, task) for task in tasks]


def test_a_run_decides_at_the_first_epoch_and_at_each_doubling(sweep: list[Halving]) -> None:
    assert [epoch for epoch in range(1, 40) if sweep[0].decides(epoch)] == [2, 4, 8, 16, 32]


def test_a_run_outside_a_sweep_never_decides(lone_task: Task, sweep: list[Halving]) -> None:
    assert not Halving(2, lone_task).decides(2)
    assert not Halving(0, sweep[0]._task).decides(2)


def test_the_first_run_continues_and_later_ones_only_in_the_better_half(
    sweep: list[Halving], capsys: pytest.CaptureFixture[str]
) -> None:
    scores = [0.3, 0.5, 0.2, 0.4, 0.6, 0.1]
    assert [one.stops(2, score) for one, score in zip(sweep, scores, strict=True)] == [
        *(False, False, True, False, False, True)
    ]
    assert "stopped early: 2 of 2 other runs were better at epoch 2" in capsys.readouterr().out
    assert not sweep[0].stops(4, 0.1)  # the first run to reach that epoch


def test_a_restarted_run_decides_as_before(sweep: list[Halving]) -> None:
    assert not sweep[0].stops(2, 0.1)
    assert not sweep[1].stops(2, 0.9)
    assert not sweep[0].stops(2, 0.1)
