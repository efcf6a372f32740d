"""Differences between the code snapshots of two runs, by file and, for text files, by line.

Snapshots share identical files as hard links: the same inode means the same content. Only files with the same size but
different inodes are read.
"""

from __future__ import annotations

import difflib
import os
import stat
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.launch.in_threads import in_threads
from clusterctl.launch.snapshot import PARTS
from clusterctl.runs.file_systems import local_devices
from clusterctl.runs.files import open_regular, read_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO

_LEFT_OUT = "__pycache__"
_CHUNK = 2**20
_MOST_BYTES = 2**19  # of a file compared line by line, which takes seconds at this size
_NO_NEWLINE = "\n\\ No newline at end of file"


class FileChange(StrEnum):
    """How a file changed from the first run to the second."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


class CodeChange(NamedTuple):
    """A file that differs, by its path in the snapshot: project/train.py, lib/clusterctl/..."""

    name: str
    change: FileChange


class FileDifference(NamedTuple):
    """A file that differs and its unified diff; None for binary and large files."""

    name: str
    change: FileChange
    lines: tuple[str, ...] | None


def code_changes(first: Path, second: Path) -> tuple[CodeChange, ...]:
    """The files that differ between two snapshots, the project's first. Raises OSError if one cannot be read."""
    if first == second:
        return ()
    before, after = _entries(first), _entries(second)
    unsure: list[tuple[str, os.DirEntry[str], os.DirEntry[str]]] = []
    found = dict.fromkeys(before.keys() - after.keys(), FileChange.REMOVED)
    found |= dict.fromkeys(after.keys() - before.keys(), FileChange.ADDED)
    for name in before.keys() & after.keys():
        same = _same(before[name], after[name])
        if same is None:
            unsure.append((name, before[name], after[name]))
        elif not same:
            found[name] = FileChange.CHANGED
    local = local_devices()
    remote = any(folder.stat().st_dev not in local for folder in (first, second))
    compared = in_threads(lambda item: _same_content(item[1].path, item[2].path), unsure, remote=remote)
    found |= {name: FileChange.CHANGED for (name, _, _), same in zip(unsure, compared, strict=True) if not same}
    own, *rest = PARTS
    return tuple(CodeChange(name, found[name]) for part in (*rest, own) for name in sorted(found) if _is_in(name, part))


def line_differences(first: Path, second: Path, change: CodeChange, hide: Callable[[str], str] = str) -> FileDifference:
    """The unified diff of one file; `hide` redacts secrets. An unreadable file counts as binary."""
    before = "" if change.change is FileChange.ADDED else _text(first / change.name)
    after = "" if change.change is FileChange.REMOVED else _text(second / change.name)
    if before is None or after is None:
        return FileDifference(*change, None)
    left = "/dev/null" if change.change is FileChange.ADDED else f"a/{change.name}"
    right = "/dev/null" if change.change is FileChange.REMOVED else f"b/{change.name}"
    lines = difflib.unified_diff(_lines(hide(before)), _lines(hide(after)), left, right, lineterm="")
    return FileDifference(*change, tuple(lines))


def _is_in(name: str, part: str) -> bool:
    return name.startswith(f"{part}/")


def _entries(snapshot: Path) -> dict[str, os.DirEntry[str]]:
    return {name: entry for part in PARTS for name, entry in _walk(str(snapshot), part)}


def _walk(snapshot: str, below: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(f"{snapshot}/{below}") as listing:
        entries = list(listing)
    for entry in entries:
        name = f"{below}/{entry.name}"
        if not entry.is_dir(follow_symlinks=False):
            yield name, entry
        elif entry.name != _LEFT_OUT:
            yield from _walk(snapshot, name)


def _same(first: os.DirEntry[str], second: os.DirEntry[str]) -> bool | None:
    """Whether two files are the same; None if that takes a comparison of their contents."""
    one, other = first.stat(follow_symlinks=False), second.stat(follow_symlinks=False)
    if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino):
        return True
    if one.st_mode != other.st_mode or one.st_size != other.st_size:
        return False
    if stat.S_ISLNK(one.st_mode):
        return os.readlink(first.path) == os.readlink(second.path)  # noqa: PTH115 - strings: there may be thousands
    return None if stat.S_ISREG(one.st_mode) else False


def _same_content(first: str, second: str) -> bool:
    with open_regular(Path(first)) as one, open_regular(Path(second)) as other:
        while (piece := one.read(_CHUNK)) == other.read(_CHUNK):
            if not piece:
                return True
    return False


def _text(path: Path) -> str | None:
    """The text of a file, or the target of a link; None for anything else."""

    def read(file: IO[bytes]) -> bytes:
        return file.read(_MOST_BYTES + 1)

    try:
        if path.is_symlink():
            return f"link to {os.readlink(path)}"  # noqa: PTH115 - unnormalized
        content = read_regular(path, read)
        return None if len(content) > _MOST_BYTES or b"\0" in content else content.decode()
    except (OSError, UnicodeDecodeError):
        return None


def _lines(text: str) -> list[str]:
    *lines, last = text.split("\n")
    return [*lines, last + _NO_NEWLINE] if last else lines
