"""clusterctl clean: what is listed, asked and removed."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from clusterctl import cli
from clusterctl.launch.snapshot import find_code, take_snapshot


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLUSTERCTL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("sys.stdin", io.StringIO())  # nobody answers
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def test_it_lists_then_asks_then_removes(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = take_snapshot(find_code(runs, None))
    os.utime(copy, (0, 0))
    assert cli.run(["clean"]) == 2
    out, err = capsys.readouterr()
    size, path = out.split()
    assert path == str(copy)
    assert f"remove 1, {size}?" in err
    assert "--yes" in err
    assert copy.is_dir()
    assert cli.run(["clean", "--yes"]) == 0
    assert capsys.readouterr().err == f"removed 1, {size}\n"
    assert cli.run(["clean"]) == 0
    assert capsys.readouterr() == ("", "nothing to remove\n")


def test_a_run_that_is_there_keeps_its_code(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = take_snapshot(find_code(runs, None))
    os.utime(copy, (0, 0))
    (runs / "a-20260101-000000-aaaa").mkdir()
    (runs / "a-20260101-000000-aaaa" / "code").symlink_to(f"../.code/{copy.name}")
    assert cli.run(["clean", "--yes"]) == 0
    assert capsys.readouterr() == ("", "nothing to remove\n")
    assert copy.is_dir()
