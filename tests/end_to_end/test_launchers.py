"""torchrun and deepspeed start the workers of each node, with what only the job knows filled in."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from support.recorded import recorded
from support.scenario import Stage

from clusterctl.shared.record.files import read_json
from clusterctl.shared.record.layout import RunDir

REAL_DEEPSPEED = Path(__file__).resolve().parents[2] / ".venv-deepspeed" / "bin"
DEEPSPEED = """#!/bin/sh
printf '%s\\n' "$@"
echo "at $MASTER_ADDR $MASTER_PORT"
cat "$CLUSTERCTL_HOSTFILE"
"""
TRAIN = """
import os, sys
import torch.distributed as dist
dist.init_process_group("gloo")
line = ["worker", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], *sys.argv[1:]]
sys.stdout.write(" ".join(line) + "\\n")  # at once: others write to the same file
sys.stdout.flush()
dist.barrier()
if "die" in sys.argv and os.environ["RANK"] == "3":
    os.kill(os.getpid(), 9)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def user(stage: Stage) -> Stage:
    """A user whose environment has torchrun."""
    stage.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    (stage.folder / "train.py").write_text(TRAIN)
    return stage


def submitted(stage: Stage, *words: str) -> RunDir:
    done = stage.call("submit", "--cluster", stage.cluster, "--nodes", "2", "--time", "10m", *words)
    assert done.returncode == 0, done.stderr
    return RunDir(stage.runs / done.stdout.strip())


def test_deepspeed_gets_a_hostfile_and_starts_each_node_without_ssh(stage: Stage) -> None:
    program = stage.folder / "deepspeed"
    program.write_text(DEEPSPEED)
    program.chmod(0o755)
    typed = ["./deepspeed", "--num_gpus", "2", "train.py", "--node_rank", "mine"]
    run = submitted(stage, "--", *typed)
    stage.wait_for_state(run, "finished")
    assert read_json(run.run_json)["job"]["argv"] == typed
    hostfile = run.attempt(0).hostfile
    names = [line.removesuffix(" slots=2") for line in hostfile.read_text().splitlines()]
    assert len({*names}) == 2
    for rank in (0, 1):
        lines = stage.log(run, rank).splitlines()
        (place,) = (line.split() for line in lines if line.startswith("at "))
        assert lines[: lines.index(" ".join(place))] == [
            f"--hostfile={hostfile}",
            "--no_ssh",
            f"--node_rank={rank}",
            f"--master_addr={place[1]}",
            f"--master_port={place[2]}",
            *typed[1:],
        ]
        assert lines[-2:] == [f"{name} slots=2" for name in names]


@pytest.mark.long
def test_torchrun_trains_on_all_nodes(user: Stage) -> None:
    run = submitted(user, "--", "torchrun", "--nproc-per-node", "2", "train.py", "--nnodes", "7")
    user.wait_for_state(run, "finished", seconds=180)
    workers = {line for rank in (0, 1) for line in user.log(run, rank).splitlines()}
    assert workers == {f"worker {number} of 4 --nnodes 7" for number in range(4)}
    status = user.status(run)
    assert (status["nodes"], status["tasks_per_node"]) == (2, 1)


@pytest.mark.long
def test_the_log_of_one_worker_of_a_launcher_is_shown(user: Stage) -> None:
    (user.folder / "train.py").write_text(f'{TRAIN}\nif os.environ["RANK"] == "3":\n    sys.exit([][0])\n')
    words = ["--set", "restart.limit=0", "--", "torchrun", "--nproc-per-node", "2", "--tee", "3", "train.py"]
    run = submitted(user, *words)

    def logs(*options: str) -> str:
        done = user.call("logs", run.id, "--no-collapse", "--cluster", user.cluster, *options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert " [rank3]: worker 3 of 4\n" in logs("--worker", "3", "--follow")
    user.wait_for_state(run, "failed", seconds=180)
    for worker in range(4):
        shown = logs("--worker", str(worker), "--stdout").splitlines()
        assert [line.partition(" [")[2] for line in shown] == [f"rank{worker}]: worker {worker} of 4"]
    assert "\nIndexError: list index out of range\n" in logs("--worker", "3", "--errors")
    unknown = user.call("logs", run.id, "--rank", "3", "--cluster", user.cluster)
    assert unknown.returncode == 5
    assert "--worker 3" in unknown.stderr
    assert "IndexError" in user.call("why", run.id, "--cluster", user.cluster).stdout


@pytest.mark.long
def test_a_killed_worker_is_named_and_all_workers_start_again(user: Stage) -> None:
    words = ["--set", "restart.without_progress=1", "--", "torchrun", "--nproc-per-node", "2", "train.py", "die"]
    run = submitted(user, *words)
    assert user.wait_for_state(run, "failed", seconds=300)["attempts"] == 2
    for number in (0, 1):
        killed = [event for event in recorded(run.attempt(number), 1) if event["event"] == "exception"]
        assert [event["signal"] for event in killed] == [9], killed
        assert "worker 3 was killed by SIGKILL" in killed[0]["message"]
    done = user.call("why", run.id, "--cluster", user.cluster)
    assert "worker with rank 3 was killed by SIGKILL" in done.stdout, done.stdout


@pytest.mark.long
@pytest.mark.parametrize("ends", ["well", "die"])
def test_the_real_deepspeed_starts_the_workers_of_all_nodes(user: Stage, ends: str) -> None:
    """On CPUs; from the environment that `make test-long` makes for it."""
    user.environment["PATH"] = f"{REAL_DEEPSPEED}:{os.environ['PATH']}"
    death = "    os.kill(os.getpid(), 9)\n"
    others = 'if "die" in sys.argv:\n    __import__("time").sleep(60)\n'  # they must not fail before it is seen
    (user.folder / "train.py").write_text(TRAIN.replace(death, death + others))
    words = ["--set", "env.DS_ACCELERATOR=cpu", "--set", "restart.without_progress=1", "--"]
    run = submitted(user, *words, "deepspeed", "--num_gpus", "2", "train.py", ends)
    user.wait_for_state(run, "finished" if ends == "well" else "failed", seconds=300)
    shown = {line for rank in (0, 1) for line in user.log(run, rank).splitlines() if line.startswith("worker ")}
    assert shown == {f"worker {number} of 4 --local_rank={number % 2} {ends}" for number in range(4)}
    if ends == "die":
        killed = [event for event in recorded(run.attempt(0), 1) if event["event"] == "exception"]
        assert [event["signal"] for event in killed] == [9], killed
        assert len(run.attempts()) == 2
        assert "was killed by SIGKILL" in user.call("why", run.id, "--cluster", user.cluster).stdout


@pytest.mark.long
def test_a_dry_run_shows_the_resulting_command(stage: Stage) -> None:
    typed = ["--gpus-per-node", "4", "--nodes", "2", "--", "env", "A=B", "torchrun", "--nnodes", "2", "train.py"]
    done = stage.call("submit", "--cluster", stage.cluster, "--dry-run", *typed)
    assert "--ntasks-per-node=1" in done.stdout
    assert "--cpus-per-task=4" in done.stdout
    assert "filled in: --node-rank=$NODE_RANK --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT " in done.stderr
    (command,) = re.findall(r"each task runs: (.*)", done.stderr)
    assert shlex.split(command)[-4:] == ["--nproc-per-node=4", "--nnodes", "2", "train.py"]
