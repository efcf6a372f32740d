"""`make setup` finds a recent Python, or reports that there is none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("python3.11", "python3.12", "python3.13", "python3.14", "python3")
NOT_THERE, OLD = "exit 127", "exit 1"  # a pyenv shim without a version; too old


def setup(folder: Path, *words: str, **pythons: str) -> subprocess.CompletedProcess[str]:
    """`make setup` in a fresh checkout; each Python runs its script in `pythons`, or else works and is recent."""
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
def test_the_first_working_and_recent_python_creates_the_environment(
    pythons: dict[str, str], found: str, tmp_path: Path
) -> None:
    assert f"'{found}' -m venv '.venv'" in setup(tmp_path, "--dry-run", **pythons).stdout


@pytest.mark.parametrize(
    ("words", "searched"), [((), "none on PATH"), (("PYTHON=python3",), "python3"), (("PYTHON=/nowhere",), "/nowhere")]
)
def test_without_a_recent_python_setup_fails_and_creates_no_environment(
    words: tuple[str, ...], searched: str, tmp_path: Path
) -> None:
    done = setup(tmp_path, *words, **dict.fromkeys([name.replace(".", "_") for name in NAMES], OLD))
    assert done.returncode == 2
    assert done.stdout == f"error: no Python 3.11 or later: {searched}\nhint: make setup PYTHON=/path/to/python3\n"
    assert not (tmp_path / ".venv").exists()


WITHOUT_ENSUREPIP = """case $2 in
venv) mkdir -p "$3/bin"; ln -s /bin/false "$3/bin/python"; echo 'ensurepip is not available' >&2; exit 1 ;;
esac"""


def test_a_python_without_venv_leaves_no_half_made_environment(tmp_path: Path) -> None:
    done = setup(tmp_path, python3_11=WITHOUT_ENSUREPIP)
    assert done.returncode == 2
    assert done.stdout.startswith("error: cannot create .venv with python3.11\nhint: as root on Debian or Ubuntu: ")
    assert "apt install python3-venv" in done.stdout
    assert not (tmp_path / ".venv").exists()


def test_an_environment_without_pip_is_completed_and_kept_if_that_fails(tmp_path: Path) -> None:
    """One that an earlier version of the Makefile, or another tool, left there."""
    program = tmp_path / ".venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.symlink_to("/bin/false")
    done = setup(tmp_path, python3_11=WITHOUT_ENSUREPIP)
    assert "error: cannot create .venv with python3.11" in done.stdout
    assert program.is_symlink()
    again = setup(tmp_path, python3_11='[ "$2" != venv ] || ln -sf "$0" .venv/bin/python')
    assert "error:" not in again.stdout
    assert program.readlink() == tmp_path / "python3.11"
