"""`data`: the command starts a separate program, which is tested with the workloads."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from clusterctl.launcher import cli

GENERATE = ("data", "generate", "taobao", "--scale", "0.0002")


@pytest.mark.long
def test_a_generated_data_set_is_complete_and_its_best_score_is_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "a folder"
    assert cli.run([*GENERATE, "--root", str(root)]) == 0
    assert capfd.readouterr().out.startswith(f"{root}: the best possible AUC is 0.9")
    assert sorted(path.name for path in root.iterdir()) == ["raw", "truth.json"]


def test_a_python_without_torch_is_the_users_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys._base_executable} -S "$@"\n')  # type: ignore[attr-defined]
    bare.chmod(0o700)
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "bare.toml").write_text(f'name = "bare"\nkind = "emulator"\npython = "{bare}"\n')
    monkeypatch.chdir(tmp_path)
    assert cli.run([*GENERATE, "--root", "data", "--cluster", "bare"]) == 1
    err = capfd.readouterr().err
    assert err.startswith("error: ")
    assert "has no " in err
    assert " -m pip install torch torch_geometric numpy scipy; or use a cluster" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("data", "generate", "taobao"), "missing option '--root'"),
        ((*GENERATE[:3], "--root", "x", "--scale", "0"), "0"),
        (("data", "generate", "amazon", "--root", "x"), "'amazon' is not one of"),
    ],
)
def test_invalid_arguments_are_usage_errors(
    words: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(words) == 2
    assert message in capfd.readouterr().err


def test_a_missing_python_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "gone.toml").write_text('name = "gone"\nkind = "emulator"\npython = "/no/python"\n')
    monkeypatch.chdir(tmp_path)
    assert cli.run([*GENERATE, "--root", "data", "--cluster", "gone"]) == 5
    assert "cannot start /no/python" in capfd.readouterr().err
