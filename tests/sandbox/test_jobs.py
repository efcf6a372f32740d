"""What jobs see on a sandbox, which is a real Slurm, so they see the same on a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.sandbox_fixture import RunningSandbox
from support.scenario import wait_until

from clusterctl.launcher.sandbox import lifecycle
from clusterctl.launcher.sandbox.description import SandboxRequest


def test_a_batch_script_runs_two_tasks_on_each_of_two_nodes(sandbox: RunningSandbox, tmp_path: Path) -> None:
    names = "SLURM_PROCID SLURM_NODEID SLURM_LOCALID SLURM_NTASKS SLURM_STEP_NUM_NODES"
    script = tmp_path / "script.sh"
    script.write_text(
        f"#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=2\n#SBATCH --output={tmp_path}/log\n"
        f"srun bash -c 'echo $(hostname) $(for name in {names}; do echo ${{!name}}; done)'\n"
    )
    sandbox.call("sbatch", "--wait", str(script))
    lines = sorted((tmp_path / "log").read_text().split("\n")[:-1], key=lambda line: line.split()[1])
    hosts = [line.split()[0] for line in lines]
    assert [line.split(" ", 1)[1] for line in lines] == ["0 0 0 4 2", "1 0 1 4 2", "2 1 0 4 2", "3 1 1 4 2"]
    assert hosts[0] == hosts[1] != hosts[2] == hosts[3]


def test_nodes_have_their_own_name_address_and_shared_memory(sandbox: RunningSandbox) -> None:
    output = sandbox.call(
        *("srun", "--nodes=2", "--ntasks-per-node=1", "bash", "-c"),
        "getent hosts $(hostname); touch /dev/shm/$(hostname); sleep 0.2; cd /dev/shm; ls -d node*; id -u",
    ).split()
    names = {word for word in output if word.startswith("node")}
    addresses = {word for word in output if word.startswith("10.")}
    assert len(names) == len(addresses) == 2
    assert len(output) == 2 * 4  # each sees its own file in /dev/shm and no other


def test_a_job_reaches_its_other_node_over_the_network(sandbox: RunningSandbox) -> None:
    program = (
        "import os, socket, time\n"
        "rank = int(os.environ['SLURM_PROCID'])\n"
        "first = os.environ['SLURM_STEP_NODELIST'].replace('[', '').split('-')[0].split(',')[0]\n"
        "if rank == 0:\n"
        "    print(socket.create_server(('', 31234)).accept()[0].recv(9))\n"
        "else:\n"
        "    for _ in range(100):\n"
        "        try: socket.create_connection((first, 31234), 5).send(b'hello'); break\n"
        "        except OSError: time.sleep(0.05)\n"
    )
    assert "b'hello'" in sandbox.call("srun", "--nodes=2", "--ntasks-per-node=1", "python3", "-c", program)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--gpus-per-node=2"], ["0,1", "0,1"]),
        (["--gres=gpu:2"], ["0,1", "0,1"]),
        (["--gpus-per-task=1"], ["0", "1"]),
        (["--gpus-per-node=2", "--gpu-bind=map_gpu:1,0"], ["0", "1"]),
        (["--gpus-per-node=2", "--gpu-bind=none"], None),  # unset by Slurm 22.05, 0,1 since
        ([], ["unset", "unset"]),
    ],
)
def test_tasks_see_their_allocated_gpus(sandbox: RunningSandbox, flags: list[str], expected: list[str] | None) -> None:
    output = sandbox.call("srun", "--ntasks=2", "--nodes=1", *flags, "sh", "-c", "echo ${CUDA_VISIBLE_DEVICES-unset}")
    assert sorted(output.split()) in ([expected] if expected else [["unset"] * 2, ["0,1"] * 2])


def test_a_request_that_no_node_can_satisfy_is_refused(sandbox: RunningSandbox) -> None:
    done = sandbox.try_to("sbatch", "--test-only", "--gpus-per-node=5", "--wrap=true")
    assert done.returncode == 1
    assert "Requested node configuration is not available" in done.stderr


def test_a_requeued_job_starts_again_within_seconds(sandbox: RunningSandbox, tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f'[ "$SLURM_RESTART_COUNT" ] || {{ scontrol requeue $SLURM_JOB_ID; exec sleep 60; }}; echo again >>{log}'
    sandbox.call("sbatch", "--wait", "--requeue", "--output=/dev/null", f"--wrap={script}", timeout=90)
    assert log.read_text() == "again\n"  # Slurm would hold it for two minutes; sbatch looks after 14, 30 and 62 s


def test_job_ids_of_earlier_sandboxes_are_not_reused(sandbox: RunningSandbox) -> None:
    assert int(sandbox.call("sbatch", "--parsable", "--output=/dev/null", "--wrap=true")) > 1000


@pytest.mark.long
def test_an_urgent_job_takes_the_node_of_a_preemptable_one(sandbox_home: RunningSandbox) -> None:
    lifecycle.up(sandbox_home.folder, SandboxRequest(nodes=1))
    words = ["--exclusive", "--requeue", "--output=/dev/null"]
    job = sandbox_home.call("sbatch", "--parsable", "--partition=preemptable", *words, "--wrap=sleep 300").strip()
    wait_until(lambda: "RUNNING" in sandbox_home.call("squeue", "--job", job, "--format=%T"), 20)
    sandbox_home.call("srun", "--partition=urgent", "--exclusive", "true")
    assert "Restarts=1" in sandbox_home.call("scontrol", "show", "job", job)
