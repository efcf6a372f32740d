"""Nodes that are switched off or disconnected, and brought back."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from support.sandbox_fixture import RunningSandbox
from support.scenario import wait_until

from clusterctl.launcher.sandbox import lifecycle, marked_processes
from clusterctl.launcher.sandbox.description import SandboxRequest, current


@pytest.fixture
def own(sandbox_home: RunningSandbox) -> RunningSandbox:
    """Two nodes that only this test uses."""
    lifecycle.up(sandbox_home.folder, SandboxRequest(nodes=2))
    return sandbox_home


def sleepers(own: RunningSandbox) -> list[marked_processes.Process]:
    return [
        process
        for process in marked_processes.find(own.folder)
        if process.command == "sleep" and process.part == "node1"
    ]


def reached(own: RunningSandbox, node: str) -> bool:
    sandbox = current(own.folder)
    assert sandbox
    try:
        socket.create_connection((sandbox.address_of(node), sandbox.port_of(node)), timeout=0.5).close()
    except OSError:
        return False
    return True


def begin_sleeping(own: RunningSandbox) -> None:
    own.call("sbatch", "--nodelist=node1", "--output=/dev/null", "--wrap=srun sleep 600")
    wait_until(lambda: sleepers(own), 20, "the task to start")


def test_off_kills_everything_on_the_node_and_on_brings_it_back(own: RunningSandbox) -> None:
    begin_sleeping(own)
    assert own.clusterctl("sandbox", "node", "off", "node1").returncode == 0
    assert sleepers(own) == []
    assert not reached(own, "node1")
    assert reached(own, "node2")
    done = own.clusterctl("sandbox", "node", "on", "node1")
    assert done.returncode == 0, done.stderr
    assert own.call("srun", "--nodelist=node1", "hostname") == "node1\n"


def test_a_disconnected_node_keeps_running_its_tasks(own: RunningSandbox) -> None:
    begin_sleeping(own)
    before = sleepers(own)
    assert own.clusterctl("sandbox", "node", "cut", "node1").returncode == 0
    assert not reached(own, "node1")
    assert sleepers(own) == before
    assert own.clusterctl("sandbox", "node", "join", "node1").returncode == 0
    wait_until(lambda: reached(own, "node1"), 10)
    assert sleepers(own) == before


def test_up_starts_a_node_that_is_off_but_does_not_reconnect_one(own: RunningSandbox) -> None:
    own.clusterctl("sandbox", "node", "cut", "node1")
    own.clusterctl("sandbox", "node", "off", "node2")
    assert own.clusterctl("sandbox", "up").returncode == 0
    assert not reached(own, "node1")
    assert reached(own, "node2")


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (["off", "node9"], 5, "nodes of the sandbox: node1, node2"),
        (["cut", "node2"], 2, "clusterctl sandbox node on node2"),
        (["burn", "node1"], 2, "clusterctl sandbox node --help"),
    ],
)
def test_invalid_node_actions_are_refused_with_a_hint(
    own: RunningSandbox, words: list[str], code: int, hint: str
) -> None:
    own.clusterctl("sandbox", "node", "off", "node2")
    done = own.clusterctl("sandbox", "node", *words)
    assert (done.returncode, f"hint: {hint}" in done.stderr) == (code, True)


@pytest.mark.long
def test_slurm_requeues_the_job_of_a_node_that_was_switched_off(own: RunningSandbox, tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = f'echo $SLURM_JOB_NODELIST >>{log}; [ -n "$SLURM_RESTART_COUNT" ] || sleep 600'
    own.call("sbatch", "--requeue", "--output=/dev/null", f"--wrap={script}")
    wait_until(log.exists, 20)
    own.clusterctl("sandbox", "node", "off", log.read_text().strip())
    wait_until(lambda: len(log.read_text().split()) == 2, 60, "the job to start again")
    assert len(set(log.read_text().split())) == 2
