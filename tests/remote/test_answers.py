"""A command that must not run twice runs once; a repeated request gets the same answer."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from clusterctl.launcher.remote import agent
from clusterctl.launcher.remote.agent import Asker, LastingAnswer, Replayed
from clusterctl.launcher.remote.frames import GONE, Frame, FrameKind
from clusterctl.shared.errors import HostError, UsageError

NAME = "0123456789abcdef" * 2


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path


def asked_again() -> list[Frame]:
    with pytest.raises(Replayed) as earlier:
        LastingAnswer.begun(NAME)
    return list(earlier.value.frames)


def test_the_output_is_replayed_to_a_repeated_request() -> None:
    first = LastingAnswer.begun(NAME)
    first.keep(Frame(FrameKind.OUTPUT, b"cora-1\n"))
    first.keep(Frame(FrameKind.ERRORS, b"warning\n"))
    first.finish(0)
    assert asked_again() == [
        *(Frame(FrameKind.OUTPUT, b"cora-1\n"), Frame(FrameKind.ERRORS, b"warning\n"), Frame(FrameKind.EXIT, b"0"))
    ]


def test_a_repeated_request_waits_for_a_running_command() -> None:
    first = LastingAnswer.begun(NAME)
    threading.Timer(0.5, first.finish, [3]).start()
    assert asked_again() == [Frame(FrameKind.EXIT, b"3")]


def test_a_killed_command_is_replayed_with_an_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "_STALE_SECONDS", 0.3)
    LastingAnswer.begun(NAME)
    assert asked_again()[-1] == Frame(FrameKind.EXIT, str(GONE).encode())


def test_a_command_without_effect_can_be_repeated() -> None:
    LastingAnswer.begun(NAME).forget()
    LastingAnswer.begun(NAME).finish(0)
    assert asked_again() == [Frame(FrameKind.EXIT, b"0")]


def test_a_waiting_request_runs_the_command_if_the_first_had_no_effect() -> None:
    first = LastingAnswer.begun(NAME)
    threading.Timer(0.5, first.forget).start()
    LastingAnswer.begun(NAME).finish(0)


@pytest.mark.parametrize("name", ["", "../../escape", NAME[:-1], NAME.upper(), f"{NAME}\n"])
def test_a_name_cannot_escape_its_folder(name: str) -> None:
    with pytest.raises(UsageError):
        LastingAnswer.begun(name)


def test_old_answers_are_removed_and_private(data: Path) -> None:
    LastingAnswer.begun(NAME).finish(0)
    folder = data / "clusterctl" / "remote-answers"
    assert folder.stat().st_mode & 0o077 == 0
    old = time.time() - 2 * 86400
    os.utime(folder / NAME, (old, old))
    LastingAnswer.begun(NAME[::-1])
    assert [path.name for path in folder.iterdir()] == [NAME[::-1]]


def test_an_unread_rest_of_an_answer_does_not_reach_the_next_question() -> None:
    ours, theirs = socket.socketpair()
    asker = Asker(theirs)
    for pieces in ([b"one", b"two", b""], [b"other", b""]):
        ours.sendall(b"".join(Frame(FrameKind.DATA, piece).packed() for piece in pieces))
    assert next(asker.ask({"upload": "a"})) == b"one"
    assert list(asker.ask({"upload": "b"})) == [b"other"]
    ours.shutdown(socket.SHUT_WR)
    with pytest.raises(HostError):
        list(asker.ask({"upload": "c"}))
    assert asker.lost
    ours.close()
    theirs.close()
