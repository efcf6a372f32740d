"""Sweeps from submission to the end, on every back end; and the guide to them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from support.guide import follow
from support.scenario import ON_SLURM, Stage, wait_until

from clusterctl.shared.record.layout import RunDir, SweepDir

THROUGH_A_HOST = True

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "sweeps.md"
# Waits for .go; fails where VALUE=bad, unless .fixed exists.
PROGRAM = """
import os, pathlib, sys, time
run = pathlib.Path(os.environ["CLUSTERCTL_RUN_DIR"])
print("value", os.environ["VALUE"], sys.argv[1], flush=True)
while not (run.parent / ".go").exists(): time.sleep(0.1)
sys.exit(os.environ["VALUE"] == "bad" and not (run.parent / ".fixed").exists())
"""
JOB = f"""
workload = "command"
argv = ["python", "-c", {json.dumps(PROGRAM)}, "{{place}}"]
[env]
VALUE = "none"
[resources]
nodes = 1
"""


class SweepOnStage:
    def __init__(self, stage: Stage, *words: str) -> None:
        self.stage = stage
        done = stage.call("submit", stage.write_job("job", JOB), "--cluster", stage.cluster, *words)
        assert done.returncode == 0, done.stderr
        self.id = done.stdout.strip()
        self.directory = SweepDir.of(stage.runs, self.id)

    def call(self, command: str, *words: str) -> str:
        done = self.stage.call(command, self.id, "--cluster", self.stage.cluster, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stages(self) -> list[str]:
        """The stages of all runs, in order."""
        runs = {run["id"]: run["stage"] for run in json.loads(self.call("status", "-o", "json"))["runs"]}
        return [runs[f"{self.id}.{place}"] for place in range(len(runs))]

    def wait_for(self, *stages: str) -> None:
        wait_until(lambda: self.stages() == [*stages], 60, f"{self.id} to be {stages}", every=0.5)

    def let_go(self) -> None:
        (self.stage.runs / ".go").touch()

    def run(self, place: int) -> RunDir:
        return self.directory.run(place)


@pytest.mark.long
@ON_SLURM
def test_a_throttled_sweep_fails_partly_and_is_resumed(stage: Stage) -> None:
    sweep = SweepOnStage(stage, "--sweep", "env.VALUE=good,bad", "--sweep", "place=a,b", "--at-once", "2")
    wait_until(lambda: sweep.stages().count("training") == 2, 60, every=0.5)
    assert sweep.stages() == ["training", "training", "queued", "queued"]
    assert "JobArrayTaskLimit" in sweep.call("status", "-o", "wide")
    sweep.let_go()
    sweep.wait_for("finished", "finished", "failed", "failed")
    assert stage.log(sweep.run(1), 0) == "value good b\n"
    assert "exited with 1" in stage.call("why", sweep.run(2).id, "--cluster", stage.cluster).stdout
    (stage.runs / ".fixed").touch()
    sweep.call("resume", "--sweep", "env.VALUE=good,new", "--sweep", "place=a")
    sweep.wait_for("finished", "finished", "finished", "finished", "finished")
    assert [len(sweep.run(place).attempts()) for place in range(5)] == [1, 1, 2, 2, 1]
    assert stage.log(sweep.run(4), 0) == "value new a\n"


@ON_SLURM
def test_cancelling_a_sweep_cancels_running_and_queued_runs(stage: Stage) -> None:
    sweep = SweepOnStage(stage, "--sweep", "place=1..5", "--at-once", "1")
    wait_until(lambda: sweep.stages()[0] == "training", 60, every=0.5)
    sweep.call("cancel", "--yes")
    sweep.wait_for(*["cancelled"] * 5)


@pytest.mark.long
def test_a_sweep_element_can_be_cancelled_and_resumed_alone(stage: Stage) -> None:
    sweep = SweepOnStage(stage, "--sweep", "place=1..3", "--hold")
    assert sweep.stages() == ["queued"] * 3
    second = sweep.run(1)
    assert stage.call("cancel", second.id, "--cluster", stage.cluster).returncode == 0
    sweep.let_go()
    sweep.call("release")
    sweep.wait_for("finished", "cancelled", "finished")
    assert stage.call("resume", second.id, "--cluster", stage.cluster).returncode == 0
    sweep.wait_for("finished", "finished", "finished")
    assert "_" not in stage.job_id(second)


@pytest.mark.long
@pytest.mark.parametrize("back_end", ["emulator"], indirect=True)
def test_runs_of_a_killed_submit_are_found_in_their_array(stage: Stage) -> None:
    sweep = SweepOnStage(stage, "--sweep", "place=1..2")
    numbers = [stage.job_id(sweep.run(place)) for place in range(2)]
    for one in (sweep.run(0), sweep.run(1), sweep.directory.array(0)):
        one.submission_json.unlink()
    wait_until(lambda: sweep.stages() == ["training"] * 2, 60, every=0.5)
    assert [stage.job_id(sweep.run(place)) for place in range(2)] == numbers
    sweep.let_go()
    sweep.wait_for("finished", "finished")


@pytest.mark.long
@pytest.mark.parametrize("back_end", ["emulator"], indirect=True)
def test_every_command_in_the_guide_works(stage: Stage, update_golden: bool) -> None:
    environment = {
        **stage.environment,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CLUSTERCTL_CLUSTER": stage.cluster,
        "COLUMNS": "160",
    }
    assert follow(GUIDE, stage.folder, environment, update=update_golden, home=stage.folder.parent) >= 7


@pytest.mark.long
def test_only_the_run_that_requests_a_restart_is_restarted(stage: Stage) -> None:
    program = """
import os, pathlib, sys
from clusterctl import runs
run = pathlib.Path(os.environ["CLUSTERCTL_RUN_DIR"])
if sys.argv[1] == "2" and os.environ["CLUSTERCTL_ATTEMPT"] == "0":
    (run / "checkpoints" / "0-1").mkdir(parents=True)
    runs.request_restart()
"""
    job = f'workload = "command"\nargv = ["python", "-c", {json.dumps(program)}, "{{place}}"]\n[resources]\nnodes = 1\n'
    stage.write_job("restarted", job)
    words = ("--sweep", "place=0..2", "--wait")
    done = stage.call("submit", "./restarted.toml", "--cluster", stage.cluster, *words)
    assert done.returncode == 0, done.stderr
    sweep = SweepDir.of(stage.runs, done.stdout.strip())
    assert [len(sweep.run(place).attempts()) for place in range(3)] == [1, 1, 2]


@pytest.mark.long
@pytest.mark.parametrize("back_end", ["emulator"], indirect=True)
def test_a_run_stops_early_if_others_are_better(stage: Stage) -> None:
    words = (
        "--sweep",
        "train.lr=1e-2,1e-6",
        "--at-once",
        "1",
        "--stop-early",
        "1",
        "--set",
        "train.epochs=3",
        "--wait",
    )
    done = stage.call("submit", "cora", "--cluster", stage.cluster, *words)
    assert done.returncode == 0, done.stderr
    good, poor = (SweepDir.of(stage.runs, done.stdout.strip()).run(place) for place in range(2))
    assert "stopped early: 1 of 1 other runs were better at epoch 1" in stage.log(poor, 0)
    records = {run: stage.status(run) for run in (good, poor)}
    assert [records[run]["epoch"] for run in (good, poor)] == [3, 1]
    assert records[poor]["test_accuracy"] < records[good]["test_accuracy"]
