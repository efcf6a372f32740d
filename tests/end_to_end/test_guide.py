"""The guide, typed line by line on a real Slurm as a new user would."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sandbox_fixture import RunningSandbox

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "your-own-cluster.md"


def steps(text: str) -> list[tuple[str, str]]:
    """The fenced blocks of the guide: ("toml", "# jobs/mine.toml\\n...") or ("console", "$ ...")."""
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[tuple[str, list[str], int]]:
    """Each command of a console block with the lines that it shows and its exit code."""
    found: list[tuple[str, list[str], int]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], [], 0))
        elif match := re.fullmatch(r"\[exit code (\d+)\]", line):
            found[-1] = (*found[-1][:2], int(match[1]))
        else:
            found[-1][1].append(line)
    return found


def shown_as(expected: list[str]) -> re.Pattern[str]:
    """A pattern for the lines in their order: `...` is anything, blanks between columns are as many as it takes."""
    lines = []
    for line in expected:
        parts = [re.sub(r"(\\ )+", r"\\s+", re.escape(part.strip())) for part in line.split("...")]
        indent = r"\s*" if line.startswith(" ") else ""
        lines.append(indent + r"[^\n]*".join(parts))
    return re.compile(r"\s*\n(?:[^\n]*\n)*?".join(line for line in lines if line != r"[^\n]*"))


@pytest.fixture
def home(sandbox: RunningSandbox) -> dict[str, str]:
    """A new user's environment on a login node: Slurm's commands on PATH, nothing configured."""
    folder = Path("/tmp/guide")
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("project/cluster", "project/jobs", "config", "data", "state"):
        (folder / name).mkdir(parents=True)
    return sandbox.environment | {
        "XDG_CONFIG_HOME": str(folder / "config"),
        "XDG_DATA_HOME": str(folder / "data"),
        "XDG_STATE_HOME": str(folder / "state"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "120",
    }


def test_every_command_of_the_guide_does_what_it_says(home: dict[str, str]) -> None:
    project = Path("/tmp/guide/project")
    done = 0
    for language, block in steps(GUIDE.read_text()):
        if language != "console":
            path = re.match(r"# (\S+)\n", block)
            assert path, block
            (project / path[1]).write_text(block)
            continue
        for command, expected, code in commands(block):
            if command.startswith("export "):
                name, _, value = command.removeprefix("export ").partition("=")
                home[name] = value
                continue
            ran = subprocess.run(
                ["bash", "-c", command], cwd=project, env=home, capture_output=True, text=True, timeout=120, check=False
            )
            output = ran.stdout + ran.stderr
            assert ran.returncode == code, f"$ {command}\n{output}"
            assert shown_as(expected).search(output), f"$ {command}\n{output}\nis not as in the guide:\n{expected}"
            done += 1
    assert done >= 8
    shutil.rmtree("/tmp/guide")
