"""Slurm's output formats: file names with replacement symbols (`rank_%5t.out`), columns, times, user names."""

from __future__ import annotations

import os
import pwd
import re
import time
from typing import TYPE_CHECKING, TypeVar

from clusterctl.launcher.emulator.virtual_cluster import node_name
from clusterctl.shared.errors import SlurmError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from clusterctl.launcher.emulator.jobs import JobRecord

Row = TypeVar("Row")


def symbols(job_id: int, record: JobRecord, job_name: str, node: int) -> dict[str, str]:
    """The replacement symbols in a job's file names. A step adds its own."""
    batch = dict.fromkeys("jJ", str(job_id)) | dict.fromkeys("nt", "0") | {"A": str(record.array or job_id)}
    element = {"a": str(record.tasks[0])} if record.tasks else {}
    return {**batch, **element, "N": node_name(node), "x": job_name, "u": user_name()}


def expand(pattern: str, symbols: dict[str, str]) -> str:
    """Replace `%x` with `symbols["x"]`, `%5x` with the same zero-padded, `%%` with `%`; keep unknown symbols.

    A backslash anywhere turns replacement off and is removed (sbatch(1), "filename pattern").
    """
    if "\\" in pattern:
        return pattern.replace("\\", "")

    def replace(match: re.Match[str]) -> str:
        width, symbol = match.groups()
        value = "%" if symbol == "%" else symbols.get(symbol, match[0])
        return value.zfill(min(int(width), 10)) if width and value.isdigit() else value

    return re.sub(r"(?s)%(\d*)(.)", replace, pattern)


def open_output(path: str, *, append: bool) -> int:
    """A descriptor whose writes are always appended, so that several processes can share it."""
    mode = os.O_APPEND if append else os.O_APPEND | os.O_TRUNC

    def once() -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | mode, 0o666)

    try:
        return once()
    except OSError:
        from clusterctl.shared.record.files import with_retries  # seldom needed, and slow to import

        return with_retries(once)


def long_format(text: str, fields: Mapping[str, Callable[[Row], str]]) -> tuple[str, Callable[[Row], str]]:
    """The header and the row format of `-O Field:[[.]width][suffix],...`; the default width is 20.

    Raises SlurmError for a field that is not in `fields` (whose keys are lower-case).
    """
    pieces: list[tuple[str, bool, int, str]] = []
    for word in text.split(","):
        name, colon, rest = word.partition(":")
        right, width, suffix = re.fullmatch(r"(\.?)(\d*)(.*)", rest, re.DOTALL).groups()  # type: ignore[union-attr]
        if name.lower() not in fields:
            raise SlurmError(f"Invalid job format specification: {name}")
        pieces.append((name.lower(), bool(right), int(width or (0 if colon else 20)), suffix))

    def show(row: Row) -> str:
        return "".join(cell(fields[name](row), width, right) + suffix for name, right, width, suffix in pieces)

    header = "".join(cell(name.upper(), width, right) + suffix for name, right, width, suffix in pieces)
    return header, show


def cell(value: str, width: int, right: bool) -> str:
    if not width:
        return value
    return value[:width].rjust(width) if right else value[:width].ljust(width)


def shown_time(seconds: float) -> str:
    """A time as Slurm shows it: local time, formatted by SLURM_TIME_FORMAT if that is set."""
    return time.strftime(os.environ.get("SLURM_TIME_FORMAT", "%Y-%m-%dT%H:%M:%S"), time.localtime(seconds))


def user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container may run under a uid without a name
        return str(os.getuid())
