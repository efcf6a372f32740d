"""Remote commands in a real terminal: ssh's prompts, and which process receives the keys."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.far import Far, FarStage, made, staged
from support.scenario import CLUSTERCTL, wait_until
from support.screens import TMUX, Terminal, opened_terminal

from clusterctl.shared.record.layout import RunDir

QUESTION = "Are you sure you want to continue connecting"


@pytest.fixture
def far(far_shared: Path) -> Iterator[Far]:
    """A machine with an unknown host key: ssh asks whether to trust it."""
    options = {"StrictHostKeyChecking": "ask"}
    with made(far_shared, through_relay=True, client=options) as far:
        (far.etc / "known").write_text("")
        yield far


@pytest.fixture
def stage(far: Far, tmp_path: Path) -> Iterator[FarStage]:
    with staged(far, tmp_path) as stage:
        yield stage


@pytest.fixture
def shell(stage: FarStage) -> Iterator[Terminal]:
    """An interactive shell, which runs each command in its own process group, as for a real user."""
    if TMUX is None:
        pytest.skip("no tmux")
    started = ["bash", "--norc", "-i"]
    environment = stage.environment | {"PS1": "$ "}
    with opened_terminal(stage.far.folder / "tmux", (100, 30), started, environment) as terminal:
        terminal.call("send-keys", f"cd '{stage.folder}'; PATH='{stage.environment['PATH']}'; clear", "Enter")
        yield terminal


def run_command(shell: Terminal, *words: str) -> None:
    shell.call("send-keys", " ".join([CLUSTERCTL, *words, "--cluster", "far; echo exited with $?"]), "Enter")


def wait_for_text(shell: Terminal, text: str) -> str:
    return wait_until(
        lambda: (screen := "".join(shell.lines())) and text in screen and screen, 10, f"{text!r} on screen"
    )


@pytest.mark.long
def test_ssh_asks_in_the_terminal_and_ctrl_c_then_goes_to_the_command(shell: Terminal, stage: FarStage) -> None:
    run_command(shell, "status")
    wait_for_text(shell, QUESTION)
    shell.call("send-keys", "yes", "Enter")
    wait_for_text(shell, "exited with 0")
    shell.call("send-keys", "clear", "Enter")
    (connection,) = stage.far.masters()
    stage.do("submit", "cora", "--hold")
    run_command(shell, "status", "--watch")
    wait_for_text(shell, "cora-")
    shell.call("send-keys", "C-c")
    wait_for_text(shell, "exited with 130")
    shell.call("send-keys", "clear", "Enter")
    run_command(shell, "status")
    wait_for_text(shell, "exited with 0")
    assert stage.far.masters() == [connection]


def test_ctrl_c_at_a_prompt_of_ssh_ends_the_command(shell: Terminal, stage: FarStage) -> None:
    run_command(shell, "status")
    wait_for_text(shell, QUESTION)
    shell.call("send-keys", "C-c")
    screen = wait_for_text(shell, "exited with 130")
    assert "Traceback" not in screen
    assert stage.far.masters() == []
    shell.call("send-keys", "echo $((6*7))", "Enter")
    wait_for_text(shell, "42")


def test_a_background_command_does_not_prompt(shell: Terminal, stage: FarStage) -> None:
    shell.call("send-keys", f"{CLUSTERCTL} status --cluster far & wait; echo exited with $?", "Enter")
    wait_for_text(shell, "exited with 0")
    assert "error: far: ssh does not trust this host" in "".join(shell.lines())


@pytest.mark.long
def test_the_monitor_reacts_to_keys_and_terminal_resizes(shell: Terminal, stage: FarStage) -> None:
    connect(shell)
    run = stage.do("submit", "cora", "--hold").strip()
    run_command(shell, "monitor", run)
    wait_for_text(shell, "JobHeldUser")
    shell.resize(140, 20)
    wait_until(lambda: any(len(line.rstrip()) > 100 for line in shell.lines()), 20, "the monitor to be that wide")
    shell.call("send-keys", "q")
    wait_for_text(shell, "exited with 0")
    shell.call("send-keys", "echo $((6*7))", "Enter")
    wait_for_text(shell, "42")  # the terminal modes are restored


@pytest.mark.long
def test_attach_opens_a_shell_on_the_node(shell: Terminal, stage: FarStage) -> None:
    connect(shell)
    job = stage.write_job("long", 'workload = "command"\nargv = ["sleep", "600"]\n[resources]\nnodes = 1\n')
    run = RunDir(stage.runs / stage.do("submit", job).strip())
    stage.wait_for_state(run, "training")
    run_command(shell, "attach", run.id)
    shell.call("send-keys", "echo job $SLURM_JOB_ID is $((6*7)) at $(tty) $COLUMNS", "Enter")
    wait_for_text(shell, "is 42 at /dev/")
    shell.call("send-keys", "sleep 300", "Enter")
    time.sleep(1)
    shell.call("send-keys", "C-c")
    shell.call("send-keys", "exit 3", "Enter")
    wait_for_text(shell, "exited with 3")


def connect(shell: Terminal) -> None:
    run_command(shell, "nodes")
    wait_for_text(shell, QUESTION)
    shell.call("send-keys", "yes", "Enter")
    wait_for_text(shell, "exited with 0")
    shell.call("send-keys", "clear", "Enter")
