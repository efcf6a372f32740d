"""Servers that want a password, or a code after the key, in a real terminal: ssh asks once, and all commands go on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.far import FarStage, made, staged
from support.scenario import CLUSTERCTL, wait_until
from support.terminal import TMUX, Terminal, opened

PASSWORD = "correct horse 7"
WITHOUT_KEY = {"PubkeyAuthentication": "no"}
SERVERS = {  # lines of sshd_config, and the prompts that follow
    "a password": (WITHOUT_KEY, ["password:"]),
    "PAM's question": (WITHOUT_KEY | {"UsePAM": "yes", "PasswordAuthentication": "no"}, ["Password:"]),
    "a second factor": ({"UsePAM": "yes", "AuthenticationMethods": "publickey,keyboard-interactive"}, ["Password:"]),
    "both": ({"UsePAM": "yes", "AuthenticationMethods": "password,keyboard-interactive"}, ["password:", "Password:"]),
}
MOST_USUAL = "a second factor"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give sshd a password of its own")


@contextmanager
def shell_at(far_shared: Path, tmp_path: Path, server: dict[str, str]) -> Iterator[tuple[Terminal, FarStage]]:
    """An interactive shell here; the server lets root in by what it asks for."""
    if TMUX is None:
        pytest.skip("no tmux")
    asks = {"PermitRootLogin": "yes", **server}
    with made(far_shared, server=asks, password=PASSWORD) as far, staged(far, tmp_path) as stage:
        environment = stage.environment | {"PS1": "$ "}
        with opened(far.folder / "tmux", (100, 30), ["bash", "--norc", "-i"], environment) as terminal:
            terminal.call("send-keys", f"cd '{stage.folder}'; PATH='{environment['PATH']}'; clear", "Enter")
            yield terminal, stage


def types(shell: Terminal, text: str) -> None:
    shell.call("send-keys", "-l", text)
    shell.call("send-keys", "Enter")


def shows(shell: Terminal, text: str) -> str:
    return wait_until(
        lambda: (screen := "".join(shell.lines())) and text in screen and screen, 20, f"{text!r} on screen"
    )


def typed(shell: Terminal, *words: str) -> None:
    types(shell, " ".join([CLUSTERCTL, *words, "--cluster", "far; echo left with $?"]))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == MOST_USUAL else pytest.mark.long) for name in SERVERS]
)
def test_ssh_asks_once_and_the_answer_is_nobodys_else(far_shared: Path, tmp_path: Path, name: str) -> None:
    server, questions = SERVERS[name]
    with shell_at(far_shared, tmp_path, server) as (shell, stage):
        typed(shell, "submit", "cora", "--hold")
        for question in questions:
            shows(shell, question)
            types(shell, PASSWORD)
        screen = shows(shell, "left with 0")
        assert "cora-" in screen
        assert PASSWORD not in screen
        assert "cora-" in stage.do("status")  # no terminal, and no question: the connection is there
        assert len(stage.far.masters()) == 1
        for folder in (stage.far.folder, stage.folder, stage.runs):
            assert not [path for path in folder.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]


@pytest.mark.long
def test_wrong_answers_are_ssh_to_refuse_and_a_question_can_be_left(far_shared: Path, tmp_path: Path) -> None:
    server, _ = SERVERS["a password"]
    with shell_at(far_shared, tmp_path, server) as (shell, stage):
        typed(shell, "status")
        for asked in (1, 2, 3):
            wait_until(lambda: "".join(shell.lines()).count("password:") == asked, 20, "the question")  # noqa: B023
            types(shell, "wrong")
        screen = shows(shell, "left with 4")
        assert "error: " in screen
        assert "Traceback" not in screen
        types(shell, "clear")
        typed(shell, "status")
        shows(shell, "password:")
        shell.call("send-keys", "C-c")
        shows(shell, "left with 130")
        types(shell, "echo $((6*7))")
        shows(shell, "42")
        assert stage.far.masters() == []
