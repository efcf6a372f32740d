"""Guides whose commands are executed: their blocks, and the expected output."""

from __future__ import annotations

import math
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ROOT / "docs" / "guides"


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


# What differs from run to run and between machines. Such a part matches any other of its kind; fractions, most of which
# come from a training, must be nearly equal.
_TIME = r"\b(?:\d+(?:\.\d+)? ?(?:ms|min|m|s|h|d))+\b"  # also 1m52s
_VARYING = {
    "run": r"\d{8}-\d{6}-[0-9a-f]{4}",
    "port": r"\b\d{5}:127\.0\.0\.1:\d{5}\b|(?<=127\.0\.0\.1:)\d{5}\b|(?<=\bport )\d{4,5}\b",  # a free one
    "token": r"(?<=[?]token=)[\w-]+",
    "clock": r"(?:\b\d{4}-\d\d-\d\d[ T]|\b)\d\d?:\d\d(?::\d\d(?:\.\d+)?)?(?: [+-]\d{4})?",
    "version": r"\b\d+\.\d+\.\d+(?:\+\w+)?\b(?!\.\d)",
    "job": r"(?<=\bJob )\d+\b|(?<= )\d{8}$",  # the last column of a table; a sandbox numbers its jobs so
    "duration": rf"{_TIME}(?: {_TIME})*",
    "size": r"\b(?:\d+/)?\d+(?:\.\d+)? ?(?:[KMGT](?:i?B)?|B)\b",
    "percent": r"\b\d+(?:\.\d+)?%",
    "many": r"\b\d{1,3}(?:,\d{3})+\b",
    "number": r"(?<![\d.])\b\d+\.\d+\b(?!\.\d)",
    "spaces": r" +",
}
_PARTS = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in _VARYING.items()))


_OF_A_RANK = re.compile(r"r\d\d |rank \d+ of ")  # in a log, or as a program says it


def by_rank(lines: Iterable[str]) -> list[str]:
    """The lines, with those of ranks that follow each other sorted by rank: time mixes them."""
    groups = groupby(lines, lambda line: bool(_rank(line)))
    return [line for is_log, group in groups for line in (sorted(group, key=_rank) if is_log else group)]


def _rank(line: str) -> str:
    found = _OF_A_RANK.match(line)
    return found[0] if found else ""


def matched(expected: list[str], output: str) -> list[str] | None:
    """The lines of `output` that are those expected, in this order; None if one is missing.

    Other lines may be between them, and those of several ranks come in any order. `...` matches anything. The first may
    have more before it, and the last behind it.
    """
    wanted = by_rank([line for line in expected if line.strip() != "..."])
    found: list[str] = []
    lines = iter(by_rank(output.splitlines()))
    for place, line in enumerate(wanted):
        is_alike = alike(line, first=place == 0, last=place == len(wanted) - 1)
        actual = next((one for one in lines if is_alike(one)), None)
        if actual is None:
            return None
        found.append(actual)
    return found


def alike(line: str, *, first: bool = False, last: bool = False) -> Callable[[str], bool]:
    """Whether another line is this one, apart from what varies. The `first` and `last` may have more around them."""
    numbers: list[float] = []

    def general(part: str, *, cut: bool) -> str:
        text, at = "", 0
        for found in _PARTS.finditer(part):
            name = str(found.lastgroup)
            if cut and name == "number" and found.end() == len(part):
                continue  # the beginning of a version, such as 3.11...
            pattern = r"\s+" if name == "spaces" else _VARYING[name]
            numbers.extend([float(found[0])] if name == "number" else [])
            text += re.escape(part[at : found.start()]) + (f"({pattern})" if name == "number" else f"(?:{pattern})")
            at = found.end()
        return text + re.escape(part[at:])

    *cut, whole = (part.strip() for part in line.split("..."))
    text = ".*".join([*(general(part, cut=True) for part in cut), general(whole, cut=False)])
    begin = ".*?" if first else r"\s*" if line.startswith(" ") else ""
    pattern = re.compile(f"{begin}{text}{'.*' if last else ' *'}")

    def is_alike(actual: str) -> bool:
        found = pattern.fullmatch(actual)
        pairs = zip(numbers, map(float, found.groups()), strict=True) if found else ()
        return bool(found) and all(math.isclose(one, other, rel_tol=0.1, abs_tol=0.05) for one, other in pairs)

    return is_alike


def with_real_output(expected: list[str], found: list[str], output: str) -> list[str]:
    """`expected` with each line that has `...` in it replaced by what was printed there."""
    printed, real, filled, place = by_rank(output.splitlines()), iter(found), list[str](), 0
    for number, line in enumerate(expected):
        if line.strip() != "...":
            actual = next(real)
            place = printed.index(actual, place) + 1
            filled.append(actual.rstrip() if "..." in line else line)
            continue
        following = sum(one.strip() != "..." for one in expected[:number])
        end = printed.index(found[following], place) if following < len(found) else len(printed)
        filled += [one.rstrip() for one in printed[place:end]]
    return filled


def follow(
    guide: str | Path,
    project: Path,
    environment: dict[str, str],
    *,
    update: bool = False,
    home: Path | None = None,
    page: Path | None = None,
) -> int:
    """Follow the guide in the folder `project`; return the number of commands. Exports are added to `environment`.

    A file's path is in the first line of its block, or in the one after `#!`; `sh` and `dockerfile` blocks are only for
    reading. With `update`, real output replaces the lines of the guide that have `...`; it shows /home/me for `home`,
    /home/me/clusterctl for this checkout, /shared/me/venv for its environment, and login1 for this machine. `page` is
    the file to update where `guide` is a part of its text.
    """
    page = guide if isinstance(guide, Path) else page
    text = guide.read_text() if isinstance(guide, Path) else guide
    done = 0
    for language, block in steps(text):
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
            output = output.replace(str(home), "/home/me") if home else output
            output = output.replace(str(Path(sys.executable).parent), "/shared/me/venv/bin")
            output = output.replace(str(ROOT), "/home/me/clusterctl")
            output = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "login1", output)
            assert ran.returncode == code, f"$ {command}\n{output}"
            found = matched(expected, output)
            assert found is not None, f"$ {command}\n{output}\ndiffers from the guide:\n{expected}"
            if page and update and (real := with_real_output(expected, found, output)) != expected:
                old, new = ("\n".join([f"$ {command}", *lines]) for lines in (expected, real))
                page.write_text(page.read_text().replace(old, new, 1))
            done += 1
    return done


def follow_here(guide: str, folder: Path, *, update: bool = False, **variables: str) -> int:
    """Follow the guide of this name as a new user of this machine; return the number of commands.

    With `update`, write the outputs into the guide.
    """
    project = folder / "project"
    (project / "jobs").mkdir(parents=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CLUSTERCTL_")}
    folders = {"CONFIG": ".config", "DATA": ".local/share", "STATE": ".local/state"}
    environment = kept | {f"XDG_{name}_HOME": str(folder / path) for name, path in folders.items()}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "CLUSTERCTL_CLUSTER": "local",
        "COLUMNS": "120",
        **variables,
    }
    page = GUIDES / f"{guide}.md"
    return follow(page, project, environment, update=update, home=folder)
