"""Guides whose commands are executed: their blocks, and the expected output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"


def steps(text: str) -> list[tuple[str, str]]:
    """The fenced blocks of the guide: ("toml", "# jobs/mine.toml\\n...") or ("console", "$ ...")."""
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[tuple[str, list[str], int]]:
    """Each command of a console block with its expected output and exit code."""
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
    """A pattern for the lines in this order: `...` matches anything, and spaces any number of spaces."""
    lines = []
    for line in expected:
        parts = [re.sub(r"(\\ )+", r"\\s+", re.escape(part.strip())) for part in line.split("...")]
        indent = r"\s*" if line.startswith(" ") else ""
        lines.append(indent + r"[^\n]*".join(parts))
    return re.compile(r"\s*\n(?:[^\n]*\n)*?".join(line for line in lines if line != r"[^\n]*"))


def follow(guide: str, project: Path, environment: dict[str, str]) -> int:
    """Follow the guide in the folder `project`; return the number of commands. Exports are added to `environment`.

    A file's path is in the first line of its block, or in the one after `#!`; `sh` and `dockerfile` blocks are only for
    reading.
    """
    done = 0
    for language, block in steps(guide):
        if language in ("sh", "dockerfile"):
            continue
        if language != "console":
            path = re.match(r"(?:#!.*\n)?(?:#|/\*) (\S+)", block)
            assert path, block
            (project / path[1]).write_text(block)
            continue
        for command, expected, code in commands(block):
            if command.startswith("export "):
                name, _, value = command.removeprefix("export ").partition("=")
                environment[name] = value
                continue
            ran = subprocess.run(
                ["bash", "-c", command],
                cwd=project,
                env=environment,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            output = ran.stdout + ran.stderr
            assert ran.returncode == code, f"$ {command}\n{output}"
            assert shown_as(expected).search(output), f"$ {command}\n{output}\ndiffers from the guide:\n{expected}"
            done += 1
    return done


def follow_here(guide: str, folder: Path, **variables: str) -> int:
    """Follow the guide of this name as a new user of this machine; return the number of commands."""
    project = folder / "project"
    (project / "jobs").mkdir(parents=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CLUSTERCTL_")}
    environment = kept | {f"XDG_{name}_HOME": str(folder / name) for name in ("CONFIG", "DATA", "STATE")}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CLUSTERCTL_CLUSTER": "local",
        "COLUMNS": "120",
        **variables,
    }
    return follow((GUIDES / f"{guide}.md").read_text(), project, environment)
