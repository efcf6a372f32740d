"""`submit --probe`: a job on one node until its first step, and what it used."""

from __future__ import annotations

import json

import pytest
from support.scenario import Stage

from clusterctl.shared.record.layout import RunDir

pytestmark = pytest.mark.parametrize("back_end", ["emulator"], indirect=True)

PROGRAM = """
import time
import clusterctl.program
held = bytearray(b"x") * (120 << 20)
for step in range(1, 10_000):
    clusterctl.program.log(step=step, loss=1.0)
    time.sleep(0.1)
"""


def test_a_probe_ends_its_run_after_a_step_and_shows_what_it_used(stage: Stage) -> None:
    (stage.folder / "train.py").write_text(PROGRAM)
    words = ["--nodes", "2", "--mem", "1G", "-o", "json", "--cluster", stage.cluster, "--", "python", "train.py"]
    done = stage.call("submit", "--probe", *words)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 120 << 20 < found["used"]["memory"] < 400 << 20
    assert (found["requested"]["memory"], found["requested"]["time"], found["enough"]["memory"]) == (
        1 << 30,
        1800,
        None,
    )
    assert "used until step " in done.stderr
    run = RunDir(stage.runs / found["id"])
    assert json.loads(run.run_json.read_text())["job"]["resources"]["nodes"] == 1
    stage.wait_for_state(run, "cancelled", seconds=60)


@pytest.mark.parametrize("option", ["--wait", "--hold", "--dry-run", "--sweep train.lr=1,2", "--in-allocation 7"])
def test_a_probe_goes_with_no_option_for_another_purpose(stage: Stage, option: str) -> None:
    done = stage.call("submit", "synthetic", "--probe", *option.split(), "--cluster", stage.cluster)
    assert done.returncode == 2
    assert f"it does not go with {option.split()[0]}" in done.stderr
