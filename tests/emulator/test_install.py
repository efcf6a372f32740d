"""The stand-ins are written at first use, and start fast."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.launcher.emulator import install
from clusterctl.launcher.emulator.install import COMMANDS, ensure_stand_ins
from clusterctl.shared.spec import Emulator


def test_a_second_call_reuses_the_stand_ins(tmp_path):
    folder = ensure_stand_ins(tmp_path, Emulator())
    written = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert set(COMMANDS) < set(written)
    assert ensure_stand_ins(tmp_path, Emulator()) == folder
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == written
    assert not list(folder.parent.glob(".*"))


def test_different_settings_share_jobs_but_not_stand_ins(make_cluster):
    small, large = make_cluster(nodes=1), make_cluster(nodes=3)
    assert small.bin != large.bin
    assert small.submit("true") == "1"
    assert large.submit("true") == "2"


def test_stand_ins_avoid_slow_imports(cluster):
    slow = {"argparse", "dataclasses", "inspect", "subprocess", "socket", "ctypes", "click", "site"}
    start = cluster.bin / "start.py"
    for command in ("sbatch", "squeue"):
        code = f"""
import runpy, sys
sys.argv = ["start.py", {command!r}, "--no-such-option"]
try:
    runpy.run_path({str(start)!r})
except SystemExit:
    print(*sys.modules)
"""
        words = [sys.executable, "-X", "utf8", "-I", "-S", "-c", code]
        loaded = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
        assert f"clusterctl.launcher.emulator.{command}" in loaded
        assert not slow & set(loaded)


def test_every_command_prints_a_version(cluster):
    assert {cluster.call(command, "--version") for command in COMMANDS} == {"slurm 22.05.0\n"}


def test_stand_ins_of_another_state_of_the_package_are_not_reused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within a version, a module that they start may get another name."""
    before = ensure_stand_ins(tmp_path, Emulator())
    monkeypatch.setattr(install, "_START", install._START.replace("launcher", "elsewhere"))
    assert ensure_stand_ins(tmp_path, Emulator()) != before
