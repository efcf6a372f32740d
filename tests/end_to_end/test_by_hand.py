"""What people and broken parts do to a run behind clusterctl's back, on a real Slurm."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from faults.scene import Scene
from support.recorded import begun
from support.sandbox_fixture import RunningSandbox
from support.scenario import Stage, alive, wait_until

from clusterctl.launcher.sandbox import marked_processes
from clusterctl.launcher.sandbox.description import current
from clusterctl.shared.record.files import read_json
from clusterctl.shared.record.layout import RunDir

pytestmark = pytest.mark.long

SLEEP = "import time; time.sleep(600)"
ON_TWO = "[resources]\nnodes = 2\ntasks_per_node = 2\n"


@pytest.fixture
def back_end(sandbox: RunningSandbox) -> str:
    return sandbox.cluster


def command(program: str, more: str = "") -> str:
    return f'workload = "command"\nargv = ["python", "-c", {json.dumps(program)}]\n{more}'


def why(stage: Stage, run: RunDir) -> dict[str, Any]:
    done = stage.call("why", run.id, "--cluster", stage.cluster, "-o", "json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def slurmstepd_of(run: RunDir, rank: int) -> int:
    """The slurmstepd above the processes of `rank`."""
    pid = alive(run, rank)[0]
    while not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"slurmstepd"):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        assert pid > 1
    return pid


def test_a_killed_slurmstepd_is_not_called_a_lost_node(stage: Stage) -> None:
    run = stage.submit(stage.write_job("stepd", command(SLEEP, ON_TWO) + "[restart]\nlimit = 0\n"))
    wait_until(lambda: all(alive(run, rank) for rank in range(4)))
    wait_until(lambda: begun(run.attempt(0)))
    os.kill(slurmstepd_of(run, 2), signal.SIGKILL)
    stage.wait_for_state(run, "failed", "lost", "finished", seconds=120)
    found = why(stage, run)
    assert (found["class"], found["node"]) == ("killed", "node2")
    assert "slurmstepd on node2" in found["cause"]


def test_a_killed_batch_script_stays_killed_in_the_history_after_a_resume(stage: Stage) -> None:
    run = stage.submit(stage.write_job("script", command(SLEEP)))
    wait_until(lambda: begun(run.attempt(0)))
    scene = Scene(stage, "command")
    scene.run = run
    scene.kill_script()
    stage.wait_for_state(run, "failed", seconds=120)
    before = why(stage, run)
    assert before["class"] == "killed"
    assert stage.call("resume", run.id, "--cluster", stage.cluster).returncode == 0
    wait_until(lambda: begun(run.attempt(1)))
    (past,) = why(stage, run)["history"]
    assert (past["class"], before["cause"] in past["cause"]) == ("killed", True)


def test_a_request_changed_by_hand_is_what_why_says(stage: Stage) -> None:
    run = stage.submit(stage.write_job("changed", command(SLEEP, '[resources]\nnodes = 3\ntime = "20m"\n')), "--hold")
    job = stage.job_id(run)
    stage.slurm("scontrol", "update", f"JobId={job}", "NumTasks=2", "NumNodes=2", "TimeLimit=7")
    found = why(stage, run)
    text = " ".join(found["facts"])
    assert "2 nodes" in text
    assert "00:07:00" in text
    assert "requested 3 nodes for 00:20:00" in text


def test_a_refused_cancellation_leaves_no_trace(stage: Stage, sandbox: RunningSandbox) -> None:
    run = stage.submit(stage.write_job("goes-on", command(SLEEP)))
    wait_until(lambda: begun(run.attempt(0)))
    described = current(sandbox.folder)
    assert described is not None
    daemons = [one for one in marked_processes.find(sandbox.folder) if one.part == one.command == "slurmctld"]
    time.sleep(10)  # slurmctld forgets what it has not saved
    marked_processes.end(daemons)
    try:
        refused = stage.call("cancel", run.id, "--cluster", stage.cluster)
    finally:
        address = (described.address, described.port_of("slurmctld"))
        words = ["slurmctld", "-D"]
        marked_processes.serve(described.path, "slurmctld", words, described.log("slurmctld"), address)
    assert refused.returncode == 4
    assert "not cancelled" in refused.stderr
    assert not run.cancel_json.exists()
    assert stage.wait_for_state(run, "training", seconds=60)["cancelling"] is False
    (victim, *_) = alive(run, 0)
    os.kill(victim, signal.SIGKILL)
    stage.wait_for_state(run, "failed", "queued", "training", seconds=60)
    wait_until(lambda: "exit_code" in read_json(run.attempt(0).host_json), 60)
    assert read_json(run.attempt(0).host_json).get("refused") != "cancelled"
    past = why(stage, run)
    classes = [past["class"], *(one["class"] for one in past["history"])]
    assert "killed" in classes
    assert "cancelled" not in classes


def test_a_run_is_not_called_queued_before_slurm_agrees_to_start_it_again(stage: Stage) -> None:
    programs, works = stage.folder / "programs", stage.folder / "works"
    programs.mkdir()
    fake = programs / "scontrol"
    fake.write_text(
        f'#!/bin/sh\n[ "$1" != requeue ] || [ -e {works} ] ||\n'
        '  { echo "slurm_requeue error: Unable to contact slurm controller (connect failure)" >&2; exit 1; }\n'
        'PATH=${PATH#*:}\nexec scontrol "$@"\n'
    )
    fake.chmod(0o755)
    setup = json.dumps([f"export PATH={programs}:$PATH"])
    program = (
        "import os, sys, time, clusterctl.program as run\n"
        "again = os.environ['CLUSTERCTL_ATTEMPT'] != '0'\n"
        "with run.checkpoint(1) as folder: (folder / 'state').touch()\n"
        "again or time.sleep(600)\n"
    )
    run = stage.submit(stage.write_job("unheard", f'setup = {setup}\n{command(program)}[restart]\nwhere = "queue"\n'))
    wait_until(lambda: list(run.checkpoints.glob("0-*")), 60)
    os.kill(alive(run, 0)[0], signal.SIGKILL)
    host = run.attempt(0).host_json
    wait_until(lambda: read_json(host).get("requeue_problem"), 60, "a refusal")
    shown = stage.status(run)
    assert shown["stage"] not in ("queued", "failed", "lost")
    assert "Unable to contact" in shown["reason"]
    assert not any("fit now" in fact for fact in why(stage, run)["facts"])
    works.touch()
    assert stage.wait_for_state(run, "finished", seconds=120)["attempts"] == 2


def test_an_empty_folder_of_an_attempt_disturbs_nothing(stage: Stage) -> None:
    program = "import time, clusterctl.program as run\nfor step in range(1, 80): run.log(step=step); time.sleep(0.1)"
    run = stage.submit(stage.write_job("folder", command(program)))
    wait_until(lambda: begun(run.attempt(0)))
    run.attempt(1).path.mkdir()
    shown = stage.wait_for_state(run, "finished", seconds=60)
    assert read_json(run.finished_json)["attempt"] == 0
    assert shown["attempt"] == 0


def test_a_waiting_run_of_a_sweep_that_somebody_cancels_is_cancelled(stage: Stage) -> None:
    job = stage.write_job("swept", 'workload = "command"\nargv = ["sleep", "600"]\n')
    done = stage.call("submit", job, "--cluster", stage.cluster, "--hold", "--sweep", "env.LR=1,2")
    assert done.returncode == 0, done.stderr
    runs = [RunDir(path) for path in sorted(stage.runs.glob("swept-*.[0-9]*"))]
    assert len(runs) == 2
    job_id = str(stage.status(runs[1])["job_id"])
    stage.slurm("scancel", job_id)
    stage.wait_for_state(runs[1], "cancelled", seconds=30)
    assert stage.status(runs[0])["stage"] == "queued"
    assert why(stage, runs[1])["class"] == "cancelled"
