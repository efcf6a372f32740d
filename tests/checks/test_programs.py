"""Files that a program begins with: what is refused at submit is what the kernel would not start."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.launcher.checks.interpreters import find_program_problem
from clusterctl.launcher.checks.job_rules import code_rules
from clusterctl.launcher.checks.look import look_around
from clusterctl.launcher.checks.surroundings import Verdict
from clusterctl.launcher.checks.verify import judge, refuse
from clusterctl.launcher.config import load_cluster, resolve
from clusterctl.launcher.slurm import Slurm
from clusterctl.launcher.submission.plan import make_plan
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Cluster

LOCAL = load_cluster("local")
SHELL = b"#!/bin/sh\nexit 0\n"
FILES = {  # content, mode, whether it would start
    "shell": (SHELL, 0o755, True),
    "by-name": (b"#!/usr/bin/env sh\nexit 0\n", 0o755, True),
    "with-options": (b"#! /bin/sh -e\nexit 0\n", 0o755, True),
    "split": (b"#!/usr/bin/env -S sh -e\nexit 0\n", 0o755, True),
    "mine.py": (f"#!{sys.executable}\n".encode(), 0o755, True),
    "binary": (Path("/bin/true").read_bytes(), 0o755, True),
    "only-executable": (SHELL, 0o100, None),  # root reads it all the same
    "CR inside": (b"#!/bin/sh\nprintf '\r\n' >/dev/null\n", 0o755, True),
    "not executable": (SHELL, 0o644, False),
    "train.py": (b"print(1)\n", 0o644, False),
    "marked.py": (b"print(1)\n", 0o755, False),
    "DOS.sh": (b"#!/bin/sh\r\nexit 0\r\n", 0o755, False),
    "DOS by name": (b"#!/usr/bin/env sh\r\nexit 0\r\n", 0o755, False),
    "one DOS line": (b"#!/bin/sh\r", 0o755, False),
    "no interpreter": (b"#!/opt/nowhere/python3\n", 0o755, False),
    "no such name": (b"#!/usr/bin/env no-such-interpreter\n", 0o755, False),
    "blank": (b"#!\n", 0o755, False),
    "empty": (b"", 0o755, False),
    "marked": (b"\xef\xbb\xbf#!/bin/sh\n", 0o755, False),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_refused_if_and_only_if_the_kernel_would_not_start_it(name: str, tmp_path: Path) -> None:
    content, mode, starts = FILES[name]
    (tmp_path / name).write_bytes(content)
    (tmp_path / name).chmod(mode)
    try:
        began = subprocess.run([f"./{name}"], cwd=tmp_path, check=False, capture_output=True).returncode == 0
    except OSError:
        began = False
    assert starts in (began, None), "the table is wrong"
    absolute = str(tmp_path / name)
    for typed in (f"./{name}", absolute):
        found = find_program_problem([typed], tmp_path, tmp_path, sys.executable, nodes_are_here=True)
        assert (found is None) == began
    if found and found.hint.startswith(("sed ", "chmod ")):
        mended = subprocess.run(["sh", "-c", f"{found.hint} && {shlex.quote(absolute)}"], check=False)
        assert mended.returncode == 0, "the hint did not help"


def problem_of(folder: Path, *argv: str, here: bool = True) -> str:
    found = find_program_problem(argv, folder, folder, sys.executable, here)
    return f"{found.problem}{'' if found.certain else ', perhaps'}" if found else ""


def test_folders_and_links_are_told_apart_from_programs(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "gone").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "good").symlink_to("/bin/true")
    assert problem_of(tmp_path, "./pkg") == "cannot start ./pkg: it is a folder"
    assert problem_of(tmp_path, "./gone") == "cannot start ./gone: its link leads nowhere: nowhere"
    assert "leads nowhere" in problem_of(tmp_path, "./loop")
    assert problem_of(tmp_path, "./none", here=False) == "cannot start ./none: no such file"
    assert problem_of(tmp_path, "./good") == ""


def test_what_only_the_nodes_know_is_not_refused(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/opt/nowhere/python3\n")
    (tmp_path / "tool").chmod(0o755)
    assert problem_of(tmp_path, "./tool", here=False).endswith("/opt/nowhere/python3, perhaps")
    assert problem_of(tmp_path, "/nowhere/bin/train", here=False) == ""
    assert problem_of(tmp_path, "/nowhere/bin/train") == "cannot start /nowhere/bin/train: no such file"
    assert problem_of(tmp_path, "train", "./none") == "", "a name is looked up on PATH"
    assert problem_of(tmp_path) == ""


def refused(folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], cluster: Cluster = LOCAL) -> str:
    """The hint for the program `words`; empty if it is not refused."""
    monkeypatch.chdir(folder)
    resolved = resolve(None, cluster, ["resources.nodes=2"], {}, folder, words)
    plan = make_plan(resolved, RunDir(folder / "runs" / "x"), folder / "copy", "1")
    checks = judge(look_around(resolved, plan, Slurm.of(load_cluster("local"))))
    try:
        refuse(checks, resolved)
    except ConfigError as error:
        return error.hint
    return next((f"warning: {check.hint}" for check in checks if check.name == "program"), "")


def test_the_hint_starts_the_program_by_its_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLUSTERCTL_CLUSTER", "local")
    (tmp_path / "train.py").write_text("print(1)\n")
    hint = refused(tmp_path, monkeypatch, ["./train.py", "--name", "a b"])
    assert hint == "clusterctl submit --set resources.nodes=2 -- python ./train.py --name 'a b'"
    again = shlex.split(hint)
    assert refused(tmp_path, monkeypatch, again[again.index("--") + 1 :]) == ""


def test_images_are_not_looked_into_and_setup_lines_may_mend_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    assert refused(tmp_path, monkeypatch, ["./train.py"], replace(LOCAL, setup=("true",))).startswith("warning: ")
    (tmp_path / "x.sqsh").write_bytes(b"")
    resolved = resolve(None, LOCAL, ["container.image=./x.sqsh"], {}, tmp_path, ["./train.py"])
    plan = make_plan(resolved, RunDir(tmp_path / "runs" / "x"), tmp_path / "copy", "1")
    found = look_around(resolved, plan, Slurm.of(LOCAL))
    assert not [check for check in code_rules(found) if check.verdict is Verdict.FAIL]


def test_a_job_file_is_told_its_key(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "own.toml").write_text('workload = "command"\nargv = ["./train.py", "--x"]\ncode = "."\n')
    resolved = resolve(str(tmp_path / "own.toml"), LOCAL, [], {}, tmp_path)
    plan = make_plan(resolved, RunDir(tmp_path / "runs" / "x"), tmp_path / "copy", "1")
    (check,) = code_rules(look_around(resolved, plan, Slurm.of(LOCAL)))
    assert check.hint == '`argv = ["python", "./train.py", "--x"]`'
