"""The tracker that the batch script starts on the run's first node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import CREATED, Fabricate
from support.made_runs import tracked_run

import clusterctl
from clusterctl.shared.record.files import read_json
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.once import leased
from clusterctl.shared.spec.job import Track

TRACKER = Path(clusterctl.__file__).parent / "launcher" / "trackers"
HOST = {"attempt": 0, "job_id": "12", "restart_count": 0, "nodes": "n1", "start": CREATED + 5}
ENDED = {**HOST, "end": CREATED + 65, "exit_code": 1, "signal": ""}
TENSORBOARD = Track(tensorboard=True)


def run_of(fabricate: Fabricate, track: Track) -> RunDir:
    steps = [{"time": CREATED + step, "step": step, "loss": 1 / step} for step in range(1, 6)]
    files = {
        "submission.json": {"job_id": "12", "time": CREATED + 1},
        "attempts/0/host.json": HOST,
        "attempts/0/metrics.jsonl": steps,
    }
    return tracked_run(fabricate, track, files)


@contextmanager
def on_node(run: RunDir) -> Iterator[subprocess.Popen[str]]:
    """The tracker as the batch script starts it; its stdin closes at the end of the block or before."""
    words = [sys.executable, "-E", "-u", str(TRACKER), str(run.path)]
    hostile = {"PYTHONPATH": "/nowhere", "PATH": os.environ["PATH"]}
    with subprocess.Popen(words, env=hostile, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process


def sent(run: RunDir) -> int:
    """The step that TensorBoard's bookmark has reached, once the tracker has loaded its library and sent something."""
    bookmark, give_up = run.trackers / "tensorboard.json", time.monotonic() + 60
    while not bookmark.exists() and time.monotonic() < give_up:
        time.sleep(0.05)
    return int(read_json(bookmark)["step"])


def test_remaining_points_and_the_outcome_are_sent_at_the_end(fabricate: Fabricate) -> None:
    run = run_of(fabricate, TENSORBOARD)
    with on_node(run) as process:
        assert sent(run) == 5
        with run.attempt(0).metrics.open("a") as metrics:
            metrics.write(json.dumps({"time": CREATED + 6, "step": 6, "loss": 0.1}) + "\n")
        run.attempt(0).host_json.write_text(json.dumps(ENDED))
        assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 0
    assert list((run.path / "tensorboard").iterdir())
    bookmark = read_json(run.trackers / "tensorboard.json")
    assert (bookmark["step"], bookmark["ended"]) == (6, "failed")
    assert not (run.trackers / "lease").exists()


def test_a_requeued_attempt_is_not_the_end_of_the_run(fabricate: Fabricate) -> None:
    run = run_of(fabricate, TENSORBOARD)
    run.attempt(0).host_json.write_text(json.dumps({**ENDED, "exit_code": 75, "requeued": True}))
    with on_node(run) as process:
        assert sent(run) == 5
        assert process.communicate(timeout=60)[1] == ""
    bookmark = read_json(run.trackers / "tensorboard.json")
    assert (bookmark["step"], bookmark["ended"]) == (5, "")


def test_a_missing_library_is_reported_once_and_does_not_affect_other_trackers(fabricate: Fabricate) -> None:
    run = run_of(fabricate, Track(tensorboard=True, mlflow="http://127.0.0.1:9"))
    with on_node(run) as process:
        assert sent(run) == 5
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert errors.startswith("clusterctl[track]: mlflow")
    assert errors.count("\n") == 1
    assert read_json(run.trackers / "tensorboard.json")["step"] == 5


def test_the_tracker_idles_if_another_process_tracks_the_run(fabricate: Fabricate) -> None:
    run = run_of(fabricate, TENSORBOARD)
    run.trackers.mkdir()
    with leased(run.trackers / "lease"):
        with on_node(run) as process:
            assert process.communicate(timeout=60)[1] == ""
        assert process.returncode == 0
        assert not (run.path / "tensorboard").exists()


@pytest.mark.parametrize("damaged", ["{", '{"schema_version": 99}'])
def test_a_damaged_run_is_reported_in_one_line(fabricate: Fabricate, damaged: str) -> None:
    run = run_of(fabricate, TENSORBOARD)
    run.run_json.write_text(damaged)
    with on_node(run) as process:
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert errors.startswith("clusterctl[track]: ")
    assert "Traceback" not in errors
