"""Checks the path of an output file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def check_output(path: Path, example: str) -> None:
    """Raise UsageError if no file can be written at `path`; `example` is a file name for the hint."""
    if not path.parent.is_dir():
        raise UsageError(f"no such folder: {path.parent}", f"mkdir -p '{path.parent}'")
    if path.is_dir():
        raise UsageError(f"is a folder: {path}", f"--output '{path / example}'")
