"""`make setup` finds a Python by itself, or says that there is none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("python3.11", "python3.12", "python3.13", "python3.14", "python3")
NOT_THERE, OLD = "exit 127", "exit 1"  # a shim of pyenv's; one for which the question is answered with no


def setup(folder: Path, *words: str, **pythons: str) -> subprocess.CompletedProcess[str]:
    """`make setup` in a fresh checkout, where each Python does what is said, or else runs and is new enough."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    for name in NAMES:
        (folder / name).write_text(f"#!/bin/sh\n{pythons.get(name.replace('.', '_'), 'exit 0')}\n")
        (folder / name).chmod(0o700)
    environment = {"PATH": f"{folder}:/usr/bin:/bin"}
    return subprocess.run(
        ["make", "setup", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("pythons", "found"),
    [
        ({}, "python3.11"),
        ({"python3_11": NOT_THERE, "python3_12": NOT_THERE}, "python3.13"),
        (dict.fromkeys(["python3_11", "python3_12", "python3_13", "python3_14"], NOT_THERE), "python3"),
    ],
)
def test_the_first_python_that_runs_and_is_new_enough_makes_the_environment(
    pythons: dict[str, str], found: str, tmp_path: Path
) -> None:
    assert f"'{found}' -m venv .venv" in setup(tmp_path, "--dry-run", **pythons).stdout


@pytest.mark.parametrize(
    ("words", "said"), [((), "none on PATH"), (("PYTHON=python3",), "python3"), (("PYTHON=/nowhere",), "/nowhere")]
)
def test_without_one_there_is_an_error_and_no_environment(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = setup(tmp_path, *words, **dict.fromkeys([name.replace(".", "_") for name in NAMES], OLD))
    assert done.returncode == 2
    assert done.stdout == f"error: no Python 3.11 or later: {said}\nhint: make setup PYTHON=/path/to/python3\n"
    assert not (tmp_path / ".venv").exists()
