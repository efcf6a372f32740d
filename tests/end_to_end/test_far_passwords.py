"""Servers that ask for a password, or a code after the key, in a real terminal: ssh asks once for all commands."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.far import FarStage, made, staged
from support.scenario import CLUSTERCTL, wait_until
from support.screens import TMUX, Terminal, opened_terminal

PASSWORD = "correct horse 7"
WITHOUT_KEY = {"PubkeyAuthentication": "no"}
SERVERS = {  # lines of sshd_config, and the prompts that follow
    "a password": (WITHOUT_KEY, ["password:"]),
    "PAM's question": (WITHOUT_KEY | {"UsePAM": "yes", "PasswordAuthentication": "no"}, ["Password:"]),
    "a second factor": ({"UsePAM": "yes", "AuthenticationMethods": "publickey,keyboard-interactive"}, ["Password:"]),
    "both": ({"UsePAM": "yes", "AuthenticationMethods": "password,keyboard-interactive"}, ["password:", "Password:"]),
}
MOST_COMMON = "a second factor"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give sshd a password of its own")


@contextmanager
def shell_at(far_shared: Path, tmp_path: Path, server: dict[str, str]) -> Iterator[tuple[Terminal, FarStage]]:
    """An interactive local shell; the server lets root log in with the methods in `server`."""
    if TMUX is None:
        pytest.skip("no tmux")
    options = {"PermitRootLogin": "yes", **server}
    with made(far_shared, server=options, password=PASSWORD) as far, staged(far, tmp_path) as stage:
        environment = stage.environment | {"PS1": "$ "}
        with opened_terminal(far.folder / "tmux", (100, 30), ["bash", "--norc", "-i"], environment) as terminal:
            terminal.call("send-keys", f"cd '{stage.folder}'; PATH='{environment['PATH']}'; clear", "Enter")
            yield terminal, stage


def type_line(shell: Terminal, text: str) -> None:
    shell.call("send-keys", "-l", text)
    shell.call("send-keys", "Enter")


def wait_for_text(shell: Terminal, text: str) -> str:
    return wait_until(
        lambda: (screen := "".join(shell.lines())) and text in screen and screen, 20, f"{text!r} on screen"
    )


def run_command(shell: Terminal, *words: str) -> None:
    type_line(shell, " ".join([CLUSTERCTL, *words, "--cluster", "far; echo exited with $?"]))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == MOST_COMMON else pytest.mark.long) for name in SERVERS]
)
def test_ssh_asks_once_and_the_password_is_stored_nowhere(far_shared: Path, tmp_path: Path, name: str) -> None:
    server, questions = SERVERS[name]
    with shell_at(far_shared, tmp_path, server) as (shell, stage):
        run_command(shell, "submit", "cora", "--hold")
        for question in questions:
            wait_for_text(shell, question)
            type_line(shell, PASSWORD)
        screen = wait_for_text(shell, "exited with 0")
        assert "cora-" in screen
        assert PASSWORD not in screen
        assert "cora-" in stage.do("status")  # no terminal and no prompt: the connection exists
        assert len(stage.far.masters()) == 1
        for folder in (stage.far.folder, stage.folder, stage.runs):
            assert not [path for path in folder.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]


@pytest.mark.long
def test_wrong_passwords_are_an_error_and_ctrl_c_leaves_the_prompt(far_shared: Path, tmp_path: Path) -> None:
    server, _ = SERVERS["a password"]
    with shell_at(far_shared, tmp_path, server) as (shell, stage):
        run_command(shell, "status")
        for asked in (1, 2, 3):
            wait_until(lambda: "".join(shell.lines()).count("password:") == asked, 20, "the question")  # noqa: B023
            type_line(shell, "wrong")
        screen = wait_for_text(shell, "exited with 4")
        assert "error: " in screen
        assert "Traceback" not in screen
        type_line(shell, "clear")
        run_command(shell, "status")
        wait_for_text(shell, "password:")
        shell.call("send-keys", "C-c")
        wait_for_text(shell, "exited with 130")
        type_line(shell, "echo $((6*7))")
        wait_for_text(shell, "42")
        assert stage.far.masters() == []
