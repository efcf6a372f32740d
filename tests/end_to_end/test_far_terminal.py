"""Commands for another machine in a real terminal: what ssh asks there, and whose the keys are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.far import Far, FarStage, made, staged
from support.scenario import CLUSTERCTL, wait_until
from support.terminal import TMUX, Terminal, opened

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
        lambda: (screen := "".join(shell.lines())) and text in screen and screen, 20, f"{text!r} on screen"
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
