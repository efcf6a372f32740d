"""The command line itself: help, unknown commands, errors and exit codes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from clusterctl import __version__
from clusterctl.launcher import cli
from clusterctl.shared.errors import SlurmError

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: str) -> tuple[int, str, str]:
        code = cli.run(words)
        return code, *capsys.readouterr()

    return run


Typed = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize("command", ["", *cli.COMMANDS])
def test_help_matches_the_golden_file(typed: Typed, command: str, update_golden: bool) -> None:
    code, out, err = typed(*command.split(), "--help")
    golden = GOLDEN / f"help_{command or 'clusterctl'}.txt"
    if update_golden:
        golden.write_text(out)
    assert (code, err) == (0, "")
    assert out == golden.read_text()


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_listed_help_is_the_short_help_of_each_command(name: str) -> None:
    command = cli.clusterctl.get_command(click.Context(cli.clusterctl), name)
    assert command is not None
    assert command.short_help == cli.COMMANDS[name]
    assert command.name == name


def test_short_help_and_version(typed: Typed) -> None:
    assert typed("-h") == typed("--help")
    assert typed("--version") == (0, f"clusterctl {__version__}\n", "")


def test_an_unknown_command_suggests_the_nearest_one(typed: Typed) -> None:
    assert typed("statsu") == (2, "", "error: no such command: statsu\nhint: did you mean status?\n")
    assert typed("xyzzy") == (2, "", "error: no such command: xyzzy\nhint: see all commands with: clusterctl --help\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "error: missing command"),
        (("rerun",), "error: missing argument 'RUN'"),
        (("status", "--al"), "error: no such option"),
        (("status", "-n", "x"), "error: invalid value for '-n': 'x' is not a valid integer range"),
        (("--frobnicate",), "error: no such option"),
    ],
)
def test_click_errors_look_like_our_own(typed: Typed, words: tuple[str, ...], message: str) -> None:
    code, out, err = typed(*words)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert "\nhint: clusterctl" in err
    assert not err.splitlines()[0].endswith(".")


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    @click.command()
    def broken() -> None:
        raise error

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda self, ctx, name: broken)


def test_an_error_is_rendered_once_with_its_hint_and_exit_code(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, SlurmError("squeue failed: \x1b[2J\nno", "try again"))
    assert typed("status") == (4, "", "error: squeue failed: \n  no\nhint: try again\n")


def test_an_interrupt_exits_with_130_and_no_traceback(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, KeyboardInterrupt())
    code, out, err = typed("status")
    assert (code, out, err.strip()) == (130, "", "")


def test_a_file_that_cannot_be_read_is_named(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, PermissionError(13, "Permission denied", "/runs/x"))
    assert typed("status") == (1, "", "error: /runs/x: Permission denied\nhint: check the permissions with: ls -ld\n")


def test_internal_errors_keep_their_traceback(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        typed("status")


def test_a_closed_pipe_causes_no_error_message() -> None:
    program = f"exec '{sys.executable}' -m clusterctl --help | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr == ""
