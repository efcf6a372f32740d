"""The columns of squeue and sinfo: `-O Field:[[.]width][suffix],...`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeVar

from clusterctl.errors import SlurmError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Row = TypeVar("Row")


def long_format(text: str, fields: Mapping[str, Callable[[Row], str]]) -> tuple[str, Callable[[Row], str]]:
    """The header and the cells of `-O Field:[[.]width][suffix],...`, where a column alone is cut at 20.

    Raises SlurmError for a field that is not among `fields` (by their names in lower case).
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
