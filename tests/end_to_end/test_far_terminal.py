"""Commands for another machine in a real terminal: what ssh asks there, and whose the keys are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.far import Far, FarStage, made, staged
from support.scenario import CLUSTERCTL, wait_until
from support.terminal import TMUX, Terminal, opened

from clusterctl.runs.layout import RunDir

QUESTION = "Are you sure you want to continue connecting"


@pytest.fixture
def far(far_shared: Path) -> Iterator[Far]:
    """A machine that this one has never seen: ssh asks whether to trust it."""
    asks = {"StrictHostKeyChecking": "ask"}
    with made(far_shared, through_relay=True, client=asks) as far:
        (far.etc / "known").write_text("")
        yield far


@pytest.fixture
def stage(far: Far, tmp_path: Path) -> Iterator[FarStage]:
    with staged(far, tmp_path) as stage:
        yield stage


@pytest.fixture
def shell(stage: FarStage) -> Iterator[Terminal]:
    """An interactive shell, which gives each command a process group of its own, as people have it."""
    if TMUX is None:
        pytest.skip("no tmux")
    started = ["bash", "--norc", "-i"]
    environment = stage.environment | {"PS1": "$ "}
    with opened(stage.far.folder / "tmux", (100, 30), started, environment) as terminal:
        terminal.call("send-keys", f"cd '{stage.folder}'; PATH='{stage.environment['PATH']}'; clear", "Enter")
        yield terminal


def typed(shell: Terminal, *words: str) -> None:
    shell.call("send-keys", " ".join([CLUSTERCTL, *words, "--cluster", "far; echo left with $?"]), "Enter")


def shows(shell: Terminal, text: str) -> str:
    return wait_until(
        lambda: (screen := "".join(shell.lines())) and text in screen and screen, 10, f"{text!r} on screen"
    )


def test_ssh_asks_in_the_terminal_and_ctrl_c_is_the_commands_from_then_on(shell: Terminal, stage: FarStage) -> None:
    typed(shell, "status")
    shows(shell, QUESTION)
    shell.call("send-keys", "yes", "Enter")
    shows(shell, "left with 0")
    shell.call("send-keys", "clear", "Enter")
    (connection,) = stage.far.masters()
    stage.do("submit", "cora", "--hold")
    typed(shell, "status", "--watch")
    shows(shell, "cora-")
    shell.call("send-keys", "C-c")
    shows(shell, "left with 130")
    shell.call("send-keys", "clear", "Enter")
    typed(shell, "status")
    shows(shell, "left with 0")
    assert stage.far.masters() == [connection]


def test_ctrl_c_at_a_question_of_ssh_ends_the_command(shell: Terminal, stage: FarStage) -> None:
    typed(shell, "status")
    shows(shell, QUESTION)
    shell.call("send-keys", "C-c")
    screen = shows(shell, "left with 130")
    assert "Traceback" not in screen
    assert stage.far.masters() == []
    shell.call("send-keys", "echo $((6*7))", "Enter")
    shows(shell, "42")


def test_a_command_from_behind_asks_nothing(shell: Terminal, stage: FarStage) -> None:
    shell.call("send-keys", f"{CLUSTERCTL} status --cluster far & wait; echo left with $?", "Enter")
    shows(shell, "left with 0")
    assert "error: far: ssh does not trust this host" in "".join(shell.lines())


def test_the_monitor_follows_keys_and_the_size_of_the_terminal(shell: Terminal, stage: FarStage) -> None:
    connect(shell)
    run = stage.do("submit", "cora", "--hold").strip()
    typed(shell, "monitor", run)
    shows(shell, "JobHeldUser")
    shell.resize(140, 20)
    wait_until(lambda: any(len(line.rstrip()) > 100 for line in shell.lines()), 20, "it to be as wide as the terminal")
    shell.call("send-keys", "q")
    shows(shell, "left with 0")
    shell.call("send-keys", "echo $((6*7))", "Enter")
    shows(shell, "42")  # the terminal has its modes again


def test_attach_is_a_shell_on_the_node(shell: Terminal, stage: FarStage) -> None:
    connect(shell)
    job = stage.write_job("long", 'workload = "command"\nargv = ["sleep", "600"]\n[resources]\nnodes = 1\n')
    run = RunDir(stage.runs / stage.do("submit", job).strip())
    stage.wait_for_stage(run, "training")
    typed(shell, "attach", run.id)
    shell.call("send-keys", "echo job $SLURM_JOB_ID is $((6*7)) at $(tty) $COLUMNS", "Enter")
    shows(shell, "is 42 at /dev/")
    shell.call("send-keys", "sleep 300", "Enter")
    time.sleep(1)
    shell.call("send-keys", "C-c")
    shell.call("send-keys", "exit 3", "Enter")
    shows(shell, "left with 3")


def connect(shell: Terminal) -> None:
    typed(shell, "nodes")
    shows(shell, QUESTION)
    shell.call("send-keys", "yes", "Enter")
    shows(shell, "left with 0")
    shell.call("send-keys", "clear", "Enter")
