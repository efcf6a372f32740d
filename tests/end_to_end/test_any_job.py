"""Jobs that clusterctl did not submit: `why`, `logs`, `status` and `cancel` on the emulator and on a real Slurm."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.scenario import Stage, wait_until

from clusterctl.launcher.emulator.install import ensure_stand_ins
from clusterctl.shared.spec import Emulator

PROGRAM = """
import os, time
if os.environ["SLURM_PROCID"] == "1":
    raise KeyError("author")
time.sleep(600)
"""


def sbatch(stage: Stage, name: str, text: str, *words: str) -> str:
    """Submit a script of the user's own, with sbatch."""
    if stage.cluster == "local":
        ensure_stand_ins(Path(stage.environment["XDG_STATE_HOME"]) / "clusterctl", Emulator())
    script = stage.folder / f"{name}.sh"
    script.write_text(f"#!/bin/bash\n{text}\n")
    return stage.slurm("sbatch", "--parsable", f"--chdir={stage.folder}", *words, str(script)).strip()


def why(stage: Stage, name: str) -> dict[str, Any]:
    done = stage.call("why", name, "--cluster", stage.cluster, "-o", "json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def state(stage: Stage, job: str) -> str:
    """As squeue shows it, which forgets no job for minutes."""
    return stage.slurm("squeue", "-h", "--states=all", "-j", job, "-o", "%T").strip()


def test_a_job_is_explained_while_it_waits_runs_and_after_its_end(stage: Stage) -> None:
    (stage.folder / "train.py").write_text(PROGRAM)
    step = f"echo begin\nsrun --kill-on-bad-exit=0 {sys.executable} train.py"
    job = sbatch(stage, "mine", step, "--hold", "-N2", "-n2", "-t5", "--job-name=my net", "-o", "out %x-%j.txt")
    waiting = why(stage, job)
    assert (waiting["class"], waiting["run_stage"], waiting["cause"]) == ("pending", "queued", "it is held by its user")
    assert waiting["commands"][0] == f"scontrol release {job}"
    stage.slurm("scontrol", "release", job)
    output = stage.folder / f"out my net-{job}.txt"
    ends = ("Exited with exit code 1", "KeyError: 'author'")  # in any order: srun writes to the same file
    wait_until(lambda: output.exists() and all(end in output.read_text() for end in ends), 60, "the rank to fail")
    running = why(stage, job)
    assert (running["run_stage"], running["class"], running["certainty"]) == ("running", "user-error", "likely")
    assert running["cause"] == "its output shows: KeyError: 'author'"
    assert (running["rank"], running["others"][-1]["class"]) == (1, "healthy")

    shown = stage.call("status", "--all-jobs", "--cluster", stage.cluster, "-o", "json")
    (listed,) = (one for one in json.loads(shown.stdout)["jobs"] if one["job_id"] == job)
    assert (listed["name"], listed["state"], listed["nodes"]) == ("my net", "running", 2)
    follower = stage.begin("logs", job, "-f", "--cluster", stage.cluster)
    done = stage.call("cancel", job, "--cluster", stage.cluster)
    assert (done.returncode, done.stderr) == (0, f"cancelled job {job}\n")
    wait_until(lambda: state(stage, job) == "CANCELLED", 60, "the job to end")
    ended = why(stage, job)
    assert (ended["run_stage"], ended["class"], ended["certainty"]) == ("cancelled", "user-error", "likely")
    out, _ = follower.communicate(timeout=90)
    assert "begin" in out
    assert "KeyError: 'author'" in out
    again = stage.call("cancel", job, "--cluster", stage.cluster)
    assert (again.returncode, again.stderr) == (0, f"job {job} has already ended: cancelled\n")
    refused = stage.call("resume", job, "--cluster", stage.cluster)
    assert refused.returncode == 5
    assert f"{job} is not a job of a run" in refused.stderr
    alone = stage.call("why", f"./{output.name}")
    assert "KeyError: 'author'" in alone.stdout


def test_an_array_shows_the_element_that_failed_and_its_reason(stage: Stage) -> None:
    text = 'echo "element $SLURM_ARRAY_TASK_ID"\n'
    text += '[ $SLURM_ARRAY_TASK_ID = 1 ] && { echo "data set not found: /data/x" >&2; exit 3; }\nexit 0'
    job = sbatch(stage, "grid", text, "--array=0-2", "-t5", "-o", "out-%A-%a", "-e", "err-%A-%a")
    wait_until(lambda: state(stage, job).split() and "PENDING" not in state(stage, job), 60, "the array to start")
    wait_until(lambda: not {"RUNNING", "COMPLETING"} & {*state(stage, job).split()}, 60, "the array to end")
    found = why(stage, job)
    assert (found["id"], found["run_stage"], found["class"]) == (f"{job}_1", "failed", "user-error")
    assert found["cause"] == "exited with 3: data set not found: /data/x"
    assert "one of 3 elements: 2 completed, 1 failed" in found["facts"]
    assert why(stage, f"{job}_2")["class"] == "finished"
    log = stage.call("logs", f"{job}_1", "--cluster", stage.cluster)
    assert log.stdout == "out element 1\nerr data set not found: /data/x\n"


def test_the_job_of_a_run_leads_to_the_run(stage: Stage) -> None:
    run = stage.submit(
        stage.write_job("ours", 'workload = "command"\nargv = ["python", "-c", "raise SystemExit(3)"]\n')
    )
    stage.wait_for_state(run, "failed")
    assert why(stage, stage.job_id(run))["id"] == run.id
    assert why(stage, "@failed")["id"] == run.id


@pytest.mark.long
def test_a_time_limit_is_certain(stage: Stage) -> None:
    job = sbatch(stage, "long", "echo begin; sleep 600", "-t1")
    wait_until(lambda: state(stage, job) == "TIMEOUT", 150, "the time limit")
    found = why(stage, job)
    assert (found["class"], found["certainty"], found["run_stage"]) == ("time-limit", "certain", "timed-out")
