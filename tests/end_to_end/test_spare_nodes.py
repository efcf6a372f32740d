"""`resources.spare_nodes`: a node that is lost, or fails its check, is replaced inside the job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from support.ranks import CORA, run_job
from support.scenario import Stage, alive, wait_until

from clusterctl.launcher.sandbox import marked_processes, nodes
from clusterctl.launcher.sandbox.description import Sandbox, current
from clusterctl.shared.record.files import read_json, read_lines
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Data, Job, RedditTrain

TRAINING = f"""
workload = "reddit"
resources.nodes = 2
resources.spare_nodes = 1
checkpoint.every = "1s"
train.epochs = 25
train.batch_size = 128
train.evaluate_every = 5
data.root = {json.dumps(str(CORA))}
"""
CHECKED = """
workload = "command"
argv = ["python", "-c", "import os; print(os.environ['SLURMD_NODENAME'], os.environ['SLURM_JOB_NODELIST'])"]
resources.nodes = 2
resources.spare_nodes = 1
node_check.enabled = true
node_check.seconds = 60
node_check.scratch = "1M"
node_check.shared_memory = "1M"
"""


def host(run: RunDir, attempt: int) -> dict[str, Any]:
    return dict(read_json(run.attempt(attempt).host_json))


def losses_of(run: RunDir) -> dict[int, float]:
    """Step -> loss; a later attempt replaces the steps that an earlier one took after its last checkpoint."""
    found: dict[int, float] = {}
    for attempt in run.attempts():
        found |= {line["step"]: line["loss"] for line in read_lines(attempt.metrics) if "loss" in line}
    return found


def assert_undisturbed(run: RunDir, folder: Path) -> None:
    """The losses and weights are those of the same training on two ranks that nothing happens to."""
    calm = RunDir(folder / "calm" / "run-20260101-000000-aaaa")
    train = RedditTrain(epochs=25, batch_size=128, evaluate_every=5, device="cpu")
    run_job(Job(name="calm", workload="reddit", data=Data(root=str(CORA)), train=train), calm, [1, 1])
    assert losses_of(run) == losses_of(calm)
    ours, theirs = torch.load(run.weights), torch.load(calm.weights)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def wait_for_checkpoint(run: RunDir) -> None:
    wait_until(lambda: list(run.checkpoints.glob("0-*")), 90, "a checkpoint")


@pytest.mark.long
@pytest.mark.parametrize("back_end", ["emulator"], indirect=True)
def test_a_node_that_fails_its_check_is_replaced_before_the_ranks_start(stage: Stage, tmp_path: Path) -> None:
    for number in (1, 3, 4):
        (tmp_path / "scratch" / f"node{number}").mkdir(parents=True)
    (stage.folder / "cluster").mkdir()
    scratch = json.dumps(f"{tmp_path}/scratch/$SLURMD_NODENAME")
    (stage.folder / "cluster" / "checked.toml").write_text(f'kind = "emulator"\nlocal_scratch = {scratch}\n')
    done = stage.call("submit", stage.write_job("checked", CHECKED), "--cluster", "checked", "--wait")
    assert done.returncode == 0, done.stderr
    run = RunDir(stage.runs / done.stdout.strip())
    assert len(run.attempts()) == 1
    assert [stage.log(run, rank).split()[-2:] for rank in (0, 1)] == [
        ["node1", "node1,node3"],
        ["node3", "node1,node3"],
    ]
    record = host(run, 0)
    assert (record["nodes"], record["spares"], record["exit_code"]) == ("node1,node3", "", 0)
    assert record["left_out"] == [{"node": "node2", "why": "check", "by": "node3"}]


@pytest.mark.long
@pytest.mark.parametrize("back_end", ["emulator"], indirect=True)
def test_a_node_that_slurm_loses_is_replaced_in_the_same_job(stage: Stage, tmp_path: Path) -> None:
    run = stage.submit(stage.write_job("down", TRAINING))
    wait_for_checkpoint(run)
    stage.slurm("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=off")
    stage.wait_for_state(run, "finished", seconds=120)
    first, second = host(run, 0), host(run, 1)
    assert (first["restarting"], first["nodes"], second["nodes"]) == (True, "node1,node2", "node1,node3")
    assert second["left_out"] == [{"node": "node2", "why": "down", "by": "node3"}]
    assert (second["restart_count"], second["job_id"]) == (0, first["job_id"])
    assert_undisturbed(run, tmp_path)
    (said,) = json.loads(stage.call("status", run.id, "--cluster", stage.cluster, "-o", "json").stdout)["runs"]
    assert (said["node_names"], said["left_out"]) == ("node1,node3", second["left_out"])
    why = json.loads(stage.call("why", run.id, "--cluster", stage.cluster, "-o", "json").stdout)
    assert "node2 replaced by the spare node node3: Slurm lost it" in why["facts"]
    assert "node2 replaced by the spare node node3" in stage.call("usage", "--cluster", stage.cluster).stdout


@pytest.mark.long
@pytest.mark.parametrize("back_end", ["emulator"], indirect=True)
def test_without_a_spare_node_left_it_goes_through_the_queue(stage: Stage, tmp_path: Path) -> None:
    run = stage.submit(stage.write_job("down", TRAINING))
    wait_for_checkpoint(run)
    for number, lost in enumerate(("node2", "node3")):
        stage.slurm("scontrol", "update", f"NodeName={lost}", "State=DOWN", "Reason=off")
        wait_until(lambda number=number: "exit_code" in host(run, number), 60, "the end of an attempt")
        wait_until(lambda number=number: number or len(run.attempts()) == 2, 60, "the next one")
    stage.slurm("scontrol", "update", "NodeName=node[2-3]", "State=RESUME")
    stage.wait_for_state(run, "finished", seconds=120)
    assert [host(run, number).get("requeued", False) for number in range(3)] == [False, True, False]
    assert host(run, 2)["left_out"] == []
    assert_undisturbed(run, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("back_end", ["emulator"], indirect=True)
def test_with_min_nodes_a_training_goes_on_with_fewer_ranks_in_the_same_job(stage: Stage) -> None:
    fewer = TRAINING.replace("resources.spare_nodes = 1", "restart.min_nodes = 1")
    run = stage.submit(
        stage.write_job("fewer", fewer.replace("train.batch_size = 128", "train.global_batch_size = 256"))
    )
    wait_for_checkpoint(run)
    stage.slurm("scontrol", "update", "NodeName=node2", "State=DOWN", "Reason=off")
    status = stage.wait_for_state(run, "finished", seconds=120)
    assert status["left_out"] == [{"node": "node2", "why": "down", "by": ""}]
    assert (host(run, 1)["ranks"], host(run, 1)["restart_count"]) == (1, 0)
    assert sorted(losses_of(run)) == list(range(1, 176)), "the same steps as on two nodes"


# On a real Slurm that does not notice for five minutes.


def nodes_of(stage: Stage) -> Sandbox:
    found = current(Path(stage.environment["XDG_STATE_HOME"]) / "clusterctl" / "sandbox")
    assert found is not None
    return found


@contextmanager
def switched_off(stage: Stage, name: str) -> Iterator[None]:
    sandbox = nodes_of(stage)
    nodes.switch_off(sandbox, name)
    try:
        yield
    finally:
        nodes.switch_on(sandbox, name)
        stage.slurm("scontrol", "update", f"NodeName={name}", "State=DOWN", "Reason=test")
        with suppress(subprocess.CalledProcessError):  # it has returned by itself
            stage.slurm("scontrol", "update", f"NodeName={name}", "State=RESUME")
        nodes.wait_for(sandbox, [name])


def first_step(run: RunDir, attempt: int) -> float:
    """When `attempt` completed a step."""

    def found() -> float | None:
        lines = read_lines(run.attempt(attempt).metrics)
        return next((line["time"] for line in lines if "loss" in line), None)

    return float(wait_until(found, 90, f"the first step of attempt {attempt}"))


@pytest.mark.long
@pytest.mark.parametrize("back_end", ["patient"], indirect=True)
def test_a_node_that_is_switched_off_costs_seconds_while_slurm_still_believes_in_it(
    stage: Stage, tmp_path: Path
) -> None:
    run = stage.submit(stage.write_job("off", TRAINING))
    wait_for_checkpoint(run)
    began, lost = time.time(), host(run, 0)["nodes"].split(",")[1]
    with switched_off(stage, lost):
        took = first_step(run, 1) - began
        assert nodes.states(nodes_of(stage))[lost].startswith(("mix", "alloc"))
        stage.wait_for_state(run, "finished", seconds=120)
    assert took < 120, "15 s on a busy machine, where Slurm alone would take 300 and more"
    assert (host(run, 0)["lost"], host(run, 1)["restart_count"]) == ([lost], 0)
    assert host(run, 0)["job_id"] == host(run, 1)["job_id"]
    why = json.loads(stage.call("why", run.id, "--cluster", stage.cluster, "-o", "json").stdout)
    (before,) = why["history"]
    assert (before["class"], before["restarted_in"]) == ("node-failure", "allocation")
    assert before["cause"].startswith(f"{lost}: showed no sign of life")
    assert_undisturbed(run, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("back_end", ["patient"], indirect=True)
def test_the_ranks_of_a_node_that_comes_back_end(stage: Stage, tmp_path: Path) -> None:
    run = stage.submit(stage.write_job("back", TRAINING))
    wait_for_checkpoint(run)
    sandbox, name = nodes_of(stage), host(run, 0)["nodes"].split(",")[1]
    stopped = [process.pid for process in marked_processes.find(sandbox.path) if process.part == name]
    stale = [pid for pid in alive(run, 1) if pid in stopped]
    assert stale
    nodes.cut(sandbox, name)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        first_step(run, 1)
    finally:
        for pid in stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        nodes.join(sandbox, name)
    wait_until(lambda: not set(stale) & set(alive(run, 1)), 60, "the stale rank to leave")
    stage.wait_for_state(run, "finished", seconds=120)
    assert (host(run, 0)["lost"], len(run.attempts())) == ([name], 2)
    assert_undisturbed(run, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("back_end", ["patient"], indirect=True)
def test_a_run_that_loses_the_node_of_its_script_goes_on_in_its_successor(stage: Stage, tmp_path: Path) -> None:
    run = stage.submit(stage.write_job("host", TRAINING + 'restart.by = "successor"\n'))
    wait_for_checkpoint(run)
    wait_until(run.successor_json.exists, 30, "its successor")
    began, lost = time.time(), host(run, 0)["host"]
    with switched_off(stage, lost):
        wait_until(lambda: run.attempt(1).host_json.exists(), 90, "the start of its successor")
        assert host(run, 1)["start"] - began < 120, "23 s on a busy machine, where Slurm alone would take 400"
        stage.wait_for_state(run, "finished", seconds=240)
    assert host(run, 0)["job_id"] != host(run, 1)["job_id"]
    assert "exit_code" not in host(run, 0)
    assert_undisturbed(run, tmp_path)
