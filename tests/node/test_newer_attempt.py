"""Two attempts alive at once: the older one exits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.ranks import ENTRY
from support.recorded import claim, recorded
from support.scenario import wait_until

from clusterctl.shared.node.entry import Fence
from clusterctl.shared.record import checkpoints
from clusterctl.shared.record.checkpoints import SuccessorWatch
from clusterctl.shared.record.fields import Fields
from clusterctl.shared.record.files import write_json
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Job, to_record


def test_a_newer_attempt_is_noticed_once_and_other_folders_are_ignored(tmp_path: Path) -> None:
    attempt = RunDir(tmp_path).attempt(1)
    attempt.path.mkdir(parents=True)
    RunDir(tmp_path).attempt(0).path.mkdir()
    seen, noticed = [], threading.Event()
    fence = Fence(attempt, lambda newer: (seen.append(newer), noticed.set()))
    fence.watch(unless=lambda: False, pause=0.01)
    (attempt.path.parent / "notes").mkdir()
    RunDir(tmp_path).attempt(2).path.mkdir()  # by hand, or by a batch script that has got no further yet
    shutil.copytree(claim(attempt).path, RunDir(tmp_path).attempt(3).path)
    assert not noticed.wait(0.2)
    claim(RunDir(tmp_path).attempt(2))
    assert noticed.wait(5)
    fence.take(Fields({"number": 2}))
    assert seen == [2], "the writer's message comes too late to count"


def test_the_folders_mtime_may_be_visible_before_its_new_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = RunDir(tmp_path).attempt(0)
    attempt.path.mkdir(parents=True)
    second = claim(RunDir(tmp_path / "other").attempt(1))
    newer, now = [[], [], [], [second]], [0.0]
    monkeypatch.setattr(checkpoints, "later_folders", lambda attempt: newer.pop(0))
    for late, seen in ((0.0, [None, None, None]), (70.0, [None, None, 1])):
        monkeypatch.setattr(checkpoints, "lateness", lambda path, late=late: late)
        watch = SuccessorWatch(attempt, clock=lambda: now[0])
        for expected in seen:
            assert watch.look() == expected
            now[0] += 1
    now[0] += 70
    assert watch.look() is None, "it is no longer listed"


def test_a_task_of_a_superseded_attempt_exits_with_its_program(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    attempt = run.attempt(0)
    attempt.path.mkdir(parents=True)
    program = "import pathlib, time; pathlib.Path('up').touch(); time.sleep(600)"
    write_json(run.run_json, {"job": to_record(Job(name="x", workload="command", argv=("python", "-c", program)))})
    environment = {**os.environ, "CLUSTERCTL_RUN_DIR": str(run.path), "CLUSTERCTL_ATTEMPT": "0"}
    task = subprocess.Popen([sys.executable, *ENTRY, str(run.path)], env=environment, cwd=tmp_path)
    try:
        wait_until((tmp_path / "up").exists, 20)
        began = time.monotonic()
        claim(run.attempt(1))
        assert task.wait(timeout=60) == 0  # any other code would make srun end the newer attempt's tasks
        assert time.monotonic() - began < 10
    finally:
        task.kill()
    events = [event["event"] for event in recorded(attempt, 0)]
    assert events[-2:] == ["superseded", "exit"] or "superseded" in events
