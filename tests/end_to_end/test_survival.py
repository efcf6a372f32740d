"""Runs that are interrupted from outside end with the same result as uninterrupted ones."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.ranks import CORA, IMDB, run_job
from support.recorded import recorded
from support.scenario import ON_SLURM, Stage, alive, wait_until

from clusterctl.shared.record.files import read_json, read_lines
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import (
    Data,
    DeepSageTrain,
    GraphClassificationTrain,
    Job,
    RedditTrain,
    SyntheticTrain,
    to_record,
)

THROUGH_A_HOST = True

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"
JOB = f"""
workload = "reddit"
[resources]
nodes = 2
time = "30m"
[checkpoint]
every = "1s"
[train]
epochs = 25
batch_size = 128
evaluate_every = 5
[data]
root = {json.dumps(str(CORA))}
"""


def steps_of(run: RunDir, attempt: int = 0) -> dict[int, float]:
    """Step -> loss, as logged by one attempt."""
    return {line["step"]: line["loss"] for line in read_lines(run.attempt(attempt).metrics) if "loss" in line}


def losses_of(run: RunDir) -> dict[int, float]:
    """Step -> loss; a later attempt replaces the steps that an earlier one took after its last checkpoint."""
    found: dict[int, float] = {}
    for attempt in run.attempts():
        found |= steps_of(run, attempt.number)
    return found


def wait_for_steps(run: RunDir, count: int, attempt: int) -> None:
    wait_until(lambda: len(steps_of(run, attempt)) >= count, 90, f"{count} steps of attempt {attempt}")


def wait_for_checkpoint(run: RunDir, attempt: int) -> None:
    wait_until(lambda: list(run.checkpoints.glob(f"{attempt}-*")), 60, f"a checkpoint of attempt {attempt}")


def tasks(run: RunDir, rank: int) -> list[int]:
    """The task, or the rank that its node's standby has forked, without those that end what an attempt has left."""
    found = []
    for pid in alive(run, rank):
        with suppress(OSError):  # it has just ended
            if b"/node/__main__.py\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def host(run: RunDir, attempt: int) -> dict[str, Any]:
    return dict(read_json(run.attempt(attempt).host_json))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[int, float], dict[str, torch.Tensor]]:
    """Losses and weights of the same training on two ranks without an interruption."""
    run = RunDir(tmp_path_factory.mktemp("calm") / "run-20260101-000000-aaaa")
    train = RedditTrain(epochs=25, batch_size=128, evaluate_every=5, device="cpu")
    run_job(Job(name="calm", workload="reddit", data=Data(root=str(CORA)), train=train), run, [1, 1])
    return losses_of(run), torch.load(run.weights)


def assert_same_result(run: RunDir, expected: tuple[dict[int, float], dict[str, torch.Tensor]]) -> None:
    losses, weights = expected
    assert losses_of(run) == losses
    ours = torch.load(run.weights)
    assert ours.keys() == weights.keys()
    assert all(torch.equal(ours[name], weights[name]) for name in weights)


@pytest.mark.long
def test_a_warned_run_saves_requeues_and_ends_with_the_same_weights(
    stage: Stage, uninterrupted: tuple[dict[int, float], dict[str, torch.Tensor]]
) -> None:
    run = stage.submit(stage.write_job("warned", JOB))
    wait_for_steps(run, 20, attempt=0)
    stage.slurm("scancel", "--signal=USR2", stage.job_id(run))
    status = stage.wait_for_state(run, "finished", seconds=120)
    assert [(host(run, n)["exit_code"], host(run, n).get("requeued", False)) for n in (0, 1)] == [
        (75, True),
        (0, False),
    ]
    assert [host(run, n)["restart_count"] for n in (0, 1)] == [0, 1]
    assert (read_json(run.requeue_json)["attempt"], status["attempts"]) == (0, 2)
    assert max(steps_of(run, 0)) + 1 == min(steps_of(run, 1))
    assert_same_result(run, uninterrupted)


@pytest.mark.long
def test_a_run_requeued_killed_cancelled_and_resumed_ends_with_the_same_weights(
    stage: Stage, uninterrupted: tuple[dict[int, float], dict[str, torch.Tensor]]
) -> None:
    run = stage.submit(stage.write_job("tried", JOB))
    wait_for_steps(run, 5, attempt=0)
    refused = stage.call("resume", run.id, "--cluster", stage.cluster)
    assert refused.returncode == 2
    assert "has not ended" in refused.stderr

    stage.slurm("scontrol", "requeue", stage.job_id(run))  # only TERM: the run saves and exits
    wait_for_steps(run, 5, attempt=1)
    assert min(steps_of(run, 1)) == max(steps_of(run, 0)) + 1

    wait_for_checkpoint(run, attempt=1)
    (victim,) = alive(run, rank=1)
    os.kill(victim, signal.SIGKILL)
    wait_for_steps(run, 5, attempt=2)
    assert host(run, 1)["restarting"]
    assert host(run, 2)["restart_count"] == 1  # the same start of the job
    assert 1 < min(steps_of(run, 2)) <= max(steps_of(run, 1)) + 1

    wait_for_checkpoint(run, attempt=2)
    assert stage.call("cancel", run.id, "--cluster", stage.cluster).returncode == 0
    stage.wait_for_state(run, "cancelled", seconds=30)
    first_job = stage.job_id(run)
    done = stage.call("resume", run.id, "--cluster", stage.cluster, "--nodes", "1", "--tasks-per-node", "2", "--wait")
    assert done.returncode == 0, done.stderr
    status = stage.status(run)
    assert (status["stage"], status["attempts"], status["nodes"]) == ("finished", 4, 1)
    assert status["job_id"] == stage.job_id(run) != first_job
    assert read_json(run.submissions / "0" / "submission.json")["job_id"] == first_job
    assert_same_result(run, uninterrupted)
    again = stage.call("resume", run.id, "--cluster", stage.cluster)
    assert again.returncode == 2
    assert "has finished" in again.stderr


@pytest.mark.parametrize(
    ("kills", "seconds", "epochs"), [(5, 5.0, 25), pytest.param(100, 14.0, 600, marks=pytest.mark.faults)]
)
@pytest.mark.parametrize("back_end", ["sandbox"], indirect=True)
def test_a_run_killed_again_and_again_ends_with_the_same_weights_in_its_first_job(
    stage: Stage, tmp_path: Path, kills: int, seconds: float, epochs: int
) -> None:
    """At random phases: while ranks import, meet, load, sample, evaluate, and while a checkpoint is written."""
    # Two kills at the same step, by chance, would put the run on other nodes if there were any.
    job = JOB.replace("nodes = 2", 'nodes = 2\nexclude = "node[3-4]"').replace("epochs = 25", f"epochs = {epochs}")
    job += "[restart]\nwithout_progress = 1000\n"
    run, chance = stage.submit(stage.write_job("hard", job)), random.Random(kills)

    def started(number: int, rank: int) -> list[int]:
        return tasks(run, rank) if len(run.attempts()) > number else []

    done = 0
    while done < kills:
        rank = chance.randrange(2)
        wait_until(partial(started, done, rank), 120, f"the start after {done} kills")
        time.sleep(chance.uniform(0, 1) ** 2 * seconds)  # an import takes two
        found = wait_until(lambda rank=rank: tasks(run, rank) or run.finished_json.exists(), 120)
        if not isinstance(found, list):  # it was faster than this test, which a busy machine slows down
            break
        os.kill(found[0], signal.SIGKILL)
        done += 1
    stage.wait_for_state(run, "finished", seconds=600)
    hosts = [host(run, attempt.number) for attempt in run.attempts()]
    assert len(hosts) == done + 1 > kills / 2
    assert [one["restart_count"] for one in hosts] == [0] * len(hosts)
    calm = RunDir(tmp_path / "calm" / "run-20260101-000000-aaaa")
    train = RedditTrain(epochs=epochs, batch_size=128, evaluate_every=5, device="cpu")
    run_job(Job(name="calm", workload="reddit", data=Data(root=str(CORA)), train=train), calm, [1, 1])
    assert_same_result(run, (losses_of(calm), torch.load(calm.weights)))


@pytest.mark.long
@pytest.mark.parametrize("back_end", ["emulator"], indirect=True)
def test_ranks_whose_connections_break_start_again_in_the_same_job(stage: Stage) -> None:
    run = stage.submit(stage.write_job("cut", JOB))
    wait_for_checkpoint(run, 0)
    break_connections(*tasks(run, 1))
    stage.wait_for_state(run, "finished")
    first, second = (host(run, attempt.number) for attempt in run.attempts())
    assert (first["restarting"], second["exit_code"]) == (True, 0)
    assert list(run.attempt(0).marks.glob("*.cut")), "and perhaps one that srun has ended"
    assert sorted(losses_of(run)) == list(range(1, max(losses_of(run)) + 1))


def break_connections(pid: int) -> None:
    """Have the kernel reset the connections of a process, which goes on, as if the network had failed for good."""
    command = ["ss", "-tnpH", "state", "established"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    ports = {line.split()[2].rpartition(":")[2] for line in listed if f"pid={pid}," in line}
    assert ports
    ended = [
        subprocess.run(["ss", "-KH", "sport", "=", f":{port}"], check=False, capture_output=True).stdout
        for port in ports
    ]
    if not any(ended):
        pytest.skip("this kernel ends no connections of others (CONFIG_INET_DIAG_DESTROY)")


@pytest.mark.long
def test_the_older_of_two_concurrent_attempts_exits_and_is_ignored(
    stage: Stage, uninterrupted: tuple[dict[int, float], dict[str, torch.Tensor]]
) -> None:
    """As when a node loses its network: Slurm restarts the run elsewhere while the first attempt keeps running."""
    run = stage.submit(stage.write_job("twice", JOB))
    wait_for_checkpoint(run, attempt=0)
    stage.slurm("sbatch", str(run.script))
    wait_until(run.finished_json.exists, 120, "the end")
    assert read_json(run.finished_json)["attempt"] == 1
    events = [event["event"] for rank in (0, 1) for event in recorded(run.attempt(0), rank)]
    assert "superseded" in events  # from whichever rank noticed first
    assert host(run, 0)["exit_code"] == 1
    assert not host(run, 0).get("requeued")
    assert_same_result(run, uninterrupted)


@pytest.mark.long
def test_a_preempted_run_ends_with_the_same_weights(
    stage: Stage, uninterrupted: tuple[dict[int, float], dict[str, torch.Tensor]]
) -> None:
    whole = 'nodes = 2\nexclusive = true\npartition = "preemptable"\n'
    run = stage.submit(stage.write_job("weak", JOB.replace("nodes = 2\n", whole)))
    wait_for_steps(run, 5, attempt=0)
    urgent = '[resources]\nnodes = 4\nexclusive = true\npartition = "urgent"\n'
    job = stage.write_job("urgent", f'workload = "command"\nargv = ["sleep", "1"]\n{urgent}')
    assert stage.call("submit", job, "--cluster", stage.cluster, "--wait").returncode == 0
    stage.wait_for_state(run, "finished", seconds=120)
    assert host(run, 0)["exit_code"] in (75, 143)
    assert_same_result(run, uninterrupted)


@pytest.mark.long
@pytest.mark.parametrize(
    ("back_end", "grace"), [("emulator", 10), ("sandbox", 10), ("sandbox", 0)], indirect=["back_end"]
)
def test_a_run_whose_job_is_cancelled_for_another_ends_with_the_same_weights(
    stage: Stage, uninterrupted: tuple[dict[int, float], dict[str, torch.Tensor]], grace: int
) -> None:
    """PreemptMode=CANCEL: Slurm starts the job no more, and another one of the run goes on."""
    whole = 'nodes = 2\nexclusive = true\npartition = "preemptable"\n'
    if stage.cluster == "local":  # the emulator requeues what it preempts, unless the job forbids it
        whole += 'requeue = false\n[restart]\nby = "successor"\n[resources.sbatch]\n'
    else:
        change = f"PreemptMode=CANCEL GraceTime={grace}"
        stage.slurm("scontrol", "update", "PartitionName=preemptable", *change.split())
    try:
        run = stage.submit(stage.write_job("weak", JOB.replace("nodes = 2\n", whole).replace('time = "30m"\n', "")))
        wait_for_steps(run, 5, attempt=0)
        wait_until(run.successor_json.exists, 30, "its successor")
        urgent = '[resources]\nnodes = 4\nexclusive = true\npartition = "urgent"\n'
        job = stage.write_job("urgent", f'workload = "command"\nargv = ["sleep", "1"]\n{urgent}')
        assert stage.call("submit", job, "--cluster", stage.cluster, "--wait").returncode == 0
        stage.wait_for_state(run, "finished", seconds=120)
    finally:
        if stage.cluster != "local":
            stage.slurm("scontrol", "update", "PartitionName=preemptable", "PreemptMode=REQUEUE", "GraceTime=10")
    assert host(run, 0)["job_id"] != host(run, 1)["job_id"]
    assert_same_result(run, uninterrupted)


OTHERS = {
    "synthetic": SyntheticTrain(avg_num_nodes=4000, model="sage", fan_out=(5, 5), epochs=20, device="cpu"),
    "deep-sage": DeepSageTrain(batch_size=64, epochs=12, device="cpu"),
    "graph-classification": GraphClassificationTrain(epochs=12, patience=3, folds=3, device="cpu"),
}


@pytest.mark.long
@pytest.mark.parametrize("back_end", ["emulator"], indirect=True)
@pytest.mark.parametrize("workload", OTHERS)
def test_every_workload_ends_with_the_same_losses(stage: Stage, tmp_path: Path, workload: str) -> None:
    train = OTHERS[workload]
    root = {"deep-sage": CORA, "graph-classification": IMDB}.get(workload)
    calm = RunDir(tmp_path / "calm" / "run-20260101-000000-aaaa")
    data = Data(root=str(root) if root else None)
    run_job(Job(name="calm", workload=workload, data=data, train=train), calm, [1, 1])
    default = type(train)()
    changed = {name: value for name, value in to_record(train).items() if value != to_record(default)[name]}
    settings = "".join(f"{name} = {json.dumps(value)}\n" for name, value in changed.items())
    folder = f"[data]\nroot = {json.dumps(str(root))}\n" if root else ""
    job = f'workload = "{workload}"\n[resources]\nnodes = 2\n[train]\n{settings}{folder}'
    run = stage.submit(stage.write_job(workload, job))
    wait_for_steps(run, 25, attempt=0)
    stage.slurm("scancel", "--signal=USR2", stage.job_id(run))
    stage.wait_for_state(run, "finished", seconds=180)
    assert len(run.attempts()) == 2
    assert losses_of(run) == losses_of(calm)
    theirs, ours = (list(read_lines(one.attempt(n).metrics))[-1] for one, n in ((calm, 0), (run, 1)))
    assert ours["test_accuracy"] == theirs["test_accuracy"]


@pytest.mark.long
def test_the_program_in_the_guide_survives_a_warning(stage: Stage) -> None:
    """With its own checkpoints and restart request, on two ranks that are warned halfway through."""
    guide = (GUIDES / "surviving.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (stage.folder / "train.py").write_text(program)
    job = 'workload = "command"\nargv = ["python", "train.py"]\n[resources]\nnodes = 2\n'
    run = stage.submit(stage.write_job("guide", job))
    wait_until(lambda: list(run.checkpoints.glob("0-*")), 60, "the first checkpoint")
    stage.slurm("scancel", "--signal=USR2", stage.job_id(run))
    stage.wait_for_state(run, "finished", seconds=60)
    step = read_json(run.requeue_json)["step"]
    assert 20 <= step < 60
    assert stage.log(run, 1, attempt=1).splitlines() == [f"going on from step {step}", f"total {60 * 61 // 2}"]
    names = sorted((path.name for path in run.checkpoints.iterdir()), key=lambda name: int(name.partition("-")[2]))
    assert names[0] == f"0-{step}", "which the second attempt resumed from"
    assert {name[:2] for name in names[1:]} == {"1-"}  # one, if the warning was late


@pytest.mark.long
def test_a_warning_before_the_program_starts_is_honoured_at_its_first_step(stage: Stage) -> None:
    """Slurm sends one at the start of a job whose time limit is shorter than the lead."""
    guide = (GUIDES / "surviving.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (stage.folder / "train.py").write_text(program)
    job = 'workload = "command"\nargv = ["python", "train.py"]\n[resources]\nnodes = 2\n'
    run = stage.submit(stage.write_job("early", job))
    wait_until(lambda: len(run.attempt(0).log_files("out")) == 2, 60, "the tasks' first process")
    stage.slurm("scancel", "--signal=USR2", stage.job_id(run))
    stage.wait_for_state(run, "finished", seconds=60)
    assert read_json(run.requeue_json)["step"] < 20
    assert len(run.attempts()) == 2


@pytest.mark.long
@ON_SLURM
def test_the_shell_snippet_in_the_guide_requests_a_restart(stage: Stage) -> None:
    guide = (GUIDES / "surviving.md").read_text()
    (lines,) = re.findall(r"^    (touch .*)$", guide, re.MULTILINE)
    script = f'[ "$CLUSTERCTL_ATTEMPT" = 1 ] && exit 0\ntouch "$CLUSTERCTL_CHECKPOINTS/state"\n{lines}\nexit 9'
    job = f'workload = "command"\nargv = ["bash", "-c", {json.dumps(script)}]\n'
    run = stage.submit(stage.write_job("shell", job), "--wait")
    assert len(run.attempts()) == 2
