"""Commands on an unreliable file system: a transient fault neither ends a command nor changes its output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.late_fixture import faults_of, mounted
from support.late_mount import Settings
from support.scenario import Stage

JOB = """
workload = "command"
argv = ["python", "-c", "import clusterctl.program as run; [run.log(step=step, loss=1 / step) for step in (1, 2, 3)]"]
"""

SLEEPER = """
workload = "command"
argv = ["sh", "-c", "[ $CLUSTERCTL_ATTEMPT != 0 ] || sleep 300"]
"""


@pytest.fixture
def back_end() -> str:
    return "emulator"


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """Changes are seen immediately; one call in 50 fails, so four tries, of several calls each, almost never do."""
    places = {"backing": str(tmp_path / "backing"), "mount": str(tmp_path / "runs"), "record": str(tmp_path / "faults")}
    settings = Settings(**places, least=0, most=0, faults=0.02)
    with mounted(settings):
        yield settings
    faults = faults_of(settings)
    print(faults)
    assert len(faults) > 5


def call(stage: Stage, *words: str) -> str:
    done = stage.call(*words)
    assert done.returncode == 0, (words, done.stderr)
    assert "error:" not in done.stderr, (words, done.stderr)
    return done.stdout


@pytest.mark.long
def test_no_command_fails_because_of_a_transient_fault(settings: Settings, stage: Stage) -> None:
    here = ("--cluster", stage.cluster)
    job, sleeper = stage.write_job("weak", JOB), stage.write_job("sleeper", SLEEPER)
    for _ in range(3):
        run = call(stage, "submit", job, *here, "--wait").strip().splitlines()[0]
        (status,) = json.loads(call(stage, "status", run, *here, "-o", "json"))["runs"]
        assert (status["stage"], status["metrics"]["step"]) == ("finished", 3)
        assert json.loads(call(stage, "why", run, *here, "-o", "json"))["class"] == "finished"
        call(stage, "logs", run, *here)
        call(stage, "monitor", "--once", run, *here)
        call(stage, "report", run, *here, "--output", "report.html")
        again = call(stage, "rerun", run, *here, "--wait").strip().splitlines()[0]
        slow = stage.submit(sleeper)
        stage.wait_for_state(slow, "training")  # its next attempt is the second one, which does not sleep
        call(stage, "cancel", "--yes", slow.id, *here)
        stage.wait_for_state(slow, "cancelled")
        call(stage, "resume", slow.id, *here, "--wait")
        call(stage, "diff", run, again, *here)
        call(stage, "usage", *here)
        call(stage, "clean", "--yes", "--older-than", "0s", *here)
