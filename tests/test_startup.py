"""Imports of each command: users start it often, on login nodes with slow file systems."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import clusterctl

RUN_AND_LIST = """
import json, sys
from clusterctl.launcher.cli import run
code = run(sys.argv[1:])
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""
HEAVY = {"torch", "torch_geometric", "numpy", "scipy", "submitit", "textual", "pydantic", "mcp", "anyio"}


def loaded(tmp_path: Path, *words: str) -> set[str]:
    """The modules imported by `clusterctl WORDS`."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "CLUSTERCTL_RUNS": str(tmp_path / "runs"),
        "CLUSTERCTL_CLUSTER": "local",
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN_AND_LIST, *words], env=environment, capture_output=True, text=True, check=True
    )
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stderr
    return set(modules)


def test_help_imports_click_and_no_command(tmp_path: Path) -> None:
    modules = loaded(tmp_path, "--help")
    ours = {name for name in modules if name.startswith("clusterctl")}
    assert ours == {
        "clusterctl",
        "clusterctl.launcher",
        "clusterctl.launcher.cli",
        "clusterctl.shared",
        "clusterctl.shared.errors",
    }
    assert not modules & (HEAVY | {"rich", "subprocess", "dataclasses"})


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("status", "-o", "json"),
        ("submit", "cora", "--dry-run"),
        ("nodes", "-o", "json"),
        ("monitor", "--once"),
    ],
    ids=lambda words: " ".join(words),
)
def test_queries_and_plans_import_nothing_heavy(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert not loaded(tmp_path, *words) & HEAVY


def test_status_imports_nothing_for_planning_runs(tmp_path: Path) -> None:
    planning = {
        "clusterctl.launcher.submission.plan",
        "clusterctl.launcher.submission.script",
        "clusterctl.launcher.containers.runtimes",
    }
    assert not loaded(tmp_path, "status", "-a") & planning


def test_why_of_a_queued_run_imports_neither_rules_of_failures_nor_a_plan(tmp_path: Path) -> None:
    loaded(tmp_path, "submit", "cora", "--hold")
    unneeded = {
        "clusterctl.launcher.diagnosis.failure",
        "clusterctl.launcher.diagnosis.running",
        "clusterctl.launcher.submission.plan",
        "clusterctl.launcher.config.user_script",
    }
    try:
        assert not loaded(tmp_path, "why", "@last") & unneeded
    finally:
        loaded(tmp_path, "cancel", "@last", "--yes")  # a held run's supervisor would wait for ever


def test_only_tables_import_rich(tmp_path: Path) -> None:
    assert "rich" not in loaded(tmp_path, "status", "-o", "json")


def test_textual_is_imported_in_one_place() -> None:
    source = Path(clusterctl.__file__).parent
    names_it = re.compile(r"^\s*(from|import) textual", re.MULTILINE)
    importing = {path for path in source.rglob("*.py") if names_it.search(path.read_text())}
    assert importing == {source / "launcher" / "display" / "monitor" / "app.py"}


def test_only_the_server_for_agents_imports_mcp(tmp_path: Path) -> None:
    source = Path(clusterctl.__file__).parent
    names_it = re.compile(r"^\s*(from|import) (mcp|mcp_types|anyio)\b", re.MULTILINE)
    importing = {path for path in source.rglob("*.py") if names_it.search(path.read_text())}
    assert importing == {source / "launcher" / "api" / "agents" / "server.py"}
    assert not loaded(tmp_path, "mcp", "--skill") & HEAVY


def test_a_command_rarely_runs_the_cyclic_garbage_collector(tmp_path: Path) -> None:
    program = """
import atexit, gc, sys
from clusterctl.launcher.cli import main
looks = lambda: gc.get_stats()[0]["collections"]
atexit.register(lambda before=looks(): print(looks() - before, file=sys.stderr))
sys.argv[0] = "clusterctl"
main()
"""
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CLUSTERCTL_CLUSTER": "local"}
    words = [sys.executable, "-c", program, "status", "-a"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert int(done.stderr.splitlines()[-1]) < 10
