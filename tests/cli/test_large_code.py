"""A project too large to copy by accident: confirmed at a terminal, refused elsewhere."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

from clusterctl.launcher import cli
from clusterctl.launcher.api.run import Run
from clusterctl.launcher.api.submitting import start
from clusterctl.launcher.api.submitting.submit import LargeCode
from clusterctl.shared.record.layout import RunDir

FOUND = LargeCode("code: /p holds 50,000 files, 2,000 MiB", "to copy all of it: `large_code=True`")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch, fabricate: Callable[..., RunDir]) -> list[bool]:
    """Whether each submission allowed large projects."""
    allowed: list[bool] = []

    def submit(*_: object, large_code: bool, **__: Any) -> Run:
        allowed.append(large_code)
        if not large_code:
            raise FOUND
        return Run(fabricate().path)

    monkeypatch.setattr(start, "submit", submit)
    return allowed


def test_without_a_terminal_it_is_refused_and_the_flag_is_named(
    submitted: list[bool], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert cli.run(["submit", "cora"]) == 3
    assert "--large-code" in capsys.readouterr().err
    assert cli.run(["submit", "cora", "--large-code"]) == 0
    assert submitted == [False, True]


@pytest.mark.parametrize(("answer", "code", "allowed"), [("y\n", 0, [False, True]), ("n\n", 3, [False])])
def test_at_a_terminal_it_asks_and_shows_the_size(
    answer: str,
    code: int,
    allowed: list[bool],
    submitted: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    assert cli.run(["submit", "cora"]) == code
    assert submitted == allowed
    assert "warning: code: /p holds 50,000 files, 2,000 MiB\nCopy all of it?" in capsys.readouterr().err
