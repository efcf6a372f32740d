"""`rerun` with a change while the first run is still running and its project has changed; then `diff`."""

from __future__ import annotations

import json

import pytest
from support.scenario import Stage

from clusterctl.shared.record.layout import RunDir

THROUGH_A_HOST = True

JOB = """
workload = "command"
argv = ["python", "train.py"]
[resources]
nodes = 2
time = "10m"
[env]
LR = "0.5"
WAITS = "yes"
"""
PROGRAM = """
import os
import time
from pathlib import Path

from clusterctl import runs

print("as submitted", os.environ["LR"], flush=True)
Path("written.txt").write_text(os.environ["CLUSTERCTL_RUN_DIR"])
if os.environ["RANK"] == "0":
    runs.log(step=1, loss=float(os.environ["LR"]))
while os.environ["WAITS"] == "yes" and not Path("go").exists():
    time.sleep(0.05)
"""


@pytest.mark.long
def test_rerun_uses_the_submitted_code_while_the_first_run_is_still_running(stage: Stage) -> None:
    (stage.folder / "train.py").write_text(PROGRAM)
    first = stage.submit(stage.write_job("train", JOB))
    stage.wait_for_state(first, "training", "starting", "loading")
    (stage.folder / "train.py").write_text("raise SystemExit('not the code of the first run')\n")
    changes = ("--set", "env.LR=0.25", "--set", "env.WAITS=no")
    done = stage.call("rerun", first.id, "--cluster", stage.cluster, *changes, "--wait", "-o", "json", timeout=600)
    assert done.returncode == 0, done.stderr
    assert 'env.LR: "0.5" -> "0.25"' in done.stderr
    second = RunDir(stage.runs / json.loads(done.stdout)["id"])
    assert stage.log(second, 1) == "as submitted 0.25\n"
    assert (second.work / "written.txt").read_text() == str(second.path)
    assert [attempt.number for attempt in second.attempts()] == [0]
    assert stage.status(second)["loss"] == 0.25
    (first.work / "go").touch()
    stage.wait_for_state(first, "finished")
    assert (first.work / "written.txt").read_text() == str(first.path)
    assert stage.status(first)["loss"] == 0.5
    differing = stage.call("diff", first.id, second.id, "--cluster", stage.cluster, "-o", "json")
    assert differing.returncode == 0, differing.stderr
    found = json.loads(differing.stdout)
    assert [change["key"] for change in found["configuration"]] == ["env.LR", "env.WAITS"]
    assert (found["code"], found["versions"], found["image"]) == ([], [], [])
    assert {"metric": "loss", "first": 0.5, "second": 0.25} in found["results"]
