"""The wheel: everything works without a checkout."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from clusterctl import __version__

ROOT = Path(__file__).resolve().parents[1]


def test_the_wheel_contains_the_script_templates() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert build["packages"] == ["src/clusterctl"]
    assert "exclude" not in build
    for name in ("batch.sh", "spares.sh", "warm.sh", "hold.sh", "attach.sh"):
        assert (ROOT / "src" / "clusterctl" / "launcher" / "submission" / name).is_file()
        assert f'part("{name}")' in "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))


def test_the_changelog_begins_with_the_current_version() -> None:
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest
    assert newest[1] == __version__


@pytest.mark.long  # installs torch
def test_the_wheel_trains_in_an_empty_environment(tmp_path: Path) -> None:
    """As on another machine: only Python, and no checkout."""
    pip = ["-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, *pip, "wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"clusterctl-{__version__}-py3-none-any.whl"
    programs = tmp_path / "env" / "bin"
    subprocess.run([sys.executable, "-m", "venv", programs.parent], check=True)
    torch = f"torch=={metadata.version('torch').partition('+')[0]}"
    subprocess.run([programs / "python", *pip, "install", torch, f"{wheel}[train]"], check=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CLUSTERCTL_", "PYTHON", "XDG_"))}
    environment = {**kept, "HOME": str(tmp_path), "PATH": f"{programs}:/usr/bin:/bin"}

    def call(*words: str) -> str:
        command = [programs / "clusterctl", *words]
        return subprocess.run(
            command, cwd=elsewhere, env=environment, stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    assert call("--version") == f"clusterctl {__version__}\n"
    assert str(programs.parent) in call("config", "list")
    assert "    Time limit of each attempt" in call("config", "keys")
    run = call("submit", "cora", "--cluster", "local", "--wait").strip()
    (record,) = json.loads(call("status", run, "--cluster", "local", "-o", "json"))["runs"]
    assert record["stage"] == "finished"
    assert record["test_accuracy"] > 0.85
