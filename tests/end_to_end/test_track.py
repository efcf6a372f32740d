"""A run's metrics in a tracker: copied by its node through a restart, or from the login node."""

from __future__ import annotations

import json

import pytest
from support.scenario import FAR, Stage
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from clusterctl.shared.record.layout import RunDir

THROUGH_A_HOST = True

# Two attempts: the second one repeats steps 3 and 4.
PROGRAM = """
import os, pathlib, clusterctl.program as run
again = os.environ["CLUSTERCTL_ATTEMPT"] != "0"
for step in range(3, 7) if again else range(1, 5):
    run.log(step=step, loss=step + 0.5 * again)
if not again:
    pathlib.Path(os.environ["CLUSTERCTL_RUN_DIR"], "checkpoints", "0-2").mkdir(parents=True)
    run.request_restart()
"""
JOB = f'workload = "command"\nargv = ["python", "-c", {json.dumps(PROGRAM)}]\n[track]\ntensorboard = true\n'


def points(run: RunDir) -> list[tuple[int, float]]:
    """The losses that TensorBoard would show."""
    found = EventAccumulator(str(run.path / "tensorboard")).Reload()
    return [(point.step, point.value) for point in found.Scalars("loss")]


def track(stage: Stage, run: RunDir, *words: str) -> str:
    done = stage.call("track", run.id, *words, "--cluster", stage.cluster)
    assert done.returncode == 0, done.stderr
    return done.stdout


ONCE = [(1, 1), (2, 2), (3, 3), (4, 4), (5, 5.5), (6, 6.5)]


def test_the_node_copies_each_point_once_through_a_restart(stage: Stage) -> None:
    run = stage.submit(stage.write_job("tracked", JOB), "--wait")
    assert len(run.attempts()) == 2
    assert track(stage, run) == "tensorboard: up to date\n"
    assert points(run) == ONCE


@pytest.mark.long
@pytest.mark.here
def test_nodes_copy_nothing_if_the_login_node_does_the_tracking(stage: Stage) -> None:
    run = stage.submit(stage.write_job("tracked", JOB), "--set", "track.where=login", "--wait")
    assert not (run.path / "tensorboard").exists()
    assert track(stage, run, "--follow") == "tensorboard: 6 points\n"
    assert track(stage, run) == "tensorboard: up to date\n"
    assert points(run) == ONCE


@pytest.mark.parametrize("back_end", [FAR], indirect=True)
def test_a_remote_login_node_without_the_library_is_an_error_with_a_hint(stage: Stage) -> None:
    run = stage.submit(stage.write_job("tracked", JOB), "--set", "track.where=login", "--wait")
    done = stage.call("track", run.id, "--cluster", stage.cluster)
    assert done.returncode != 0
    assert "tensorboard is not installed for " in done.stderr
    assert "--set track.where=node" in done.stderr
