"""Runs on a file system that is late and weak: no links, no locks, faults now and then, and a clock that is off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.late_fixture import HOUR, mounted, skewed
from support.late_mount import Settings
from support.late_views import REAL, Views
from support.scenario import Stage

from clusterctl.runs.files import read_lines

SHAPE = "[resources]\nnodes = 2\ntasks_per_node = 2\n"


def command(program: str, more: str = "") -> str:
    return f'workload = "command"\nargv = ["python", "-c", {json.dumps(program)}]\n{SHAPE}{more}'


@pytest.fixture
def back_end() -> str:
    return "emulator"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    places = {"backing": str(tmp_path / "backing"), "mount": str(tmp_path / "runs"), "record": str(tmp_path / "faults")}
    return Settings(**places, least=3, most=6)


@pytest.fixture
def late(settings: Settings, stage: Stage, clock_shim: Path) -> Iterator[Stage]:
    """The stage, its runs on the late file system, the clock of its second node an hour ahead."""
    with mounted(settings):
        stage.environment |= skewed(clock_shim, "node2", HOUR)
        yield stage


def test_a_node_sees_its_own_changes_at_once_and_others_late() -> None:
    now = [0.0]
    views = Views(seed=1, least=3, most=30, clock=lambda: now[0])
    assert views.seen("x", "node2") is REAL  # from here on node2 believes what it saw
    views.change("x", "node1", "before")
    assert views.seen("x", "node1") is REAL
    now[0] = 2.9
    assert views.seen("x", "node2") == "before"
    assert views.seen("x", "node3") is REAL  # it has not looked before
    now[0] = 30
    assert views.seen("x", "node2") is REAL


def test_a_run_meets_trains_and_ends(late: Stage) -> None:
    program = """
import os, time, clusterctl.runs as run
for step in range(1, 31):
    time.sleep(0.1)
    run.log(step=step, steps=30, loss=1 / step)
print(*(os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")))
"""
    run = late.submit(late.write_job("plain", command(program)), "--wait")
    lines = [late.log(run, rank).split() for rank in range(4)]
    assert [line[:2] for line in lines] == [[str(rank), "4"] for rank in range(4)]
    assert len({tuple(line[2:]) for line in lines}) == 1
    assert late.status(run)["stage"] == "finished"
    assert [record["step"] for record in read_lines(run.attempt(0).metrics)] == list(range(1, 31))
    assert len(run.attempts()) == 1
