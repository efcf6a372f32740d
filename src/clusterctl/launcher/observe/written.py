"""Files that a run's program created or changed in its working directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.shared.record.files import is_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.shared.record.layout import RunDir

_MOST_ENTRIES = 30_000  # the code itself may have 20,000
_LEFT_OUT = {"__pycache__"}


class WrittenFile(NamedTuple):
    """A file by its name in the working directory; `time` is when it was last written."""

    name: str
    bytes: int
    time: float


class Written(NamedTuple):
    """The files by folder; not `complete` if there are too many to examine them all."""

    files: tuple[WrittenFile, ...] = ()
    complete: bool = True


def read_written(run: RunDir) -> Written:
    """The files in `run.work` that are new or differ from the code in size or time. Links are not followed."""
    if not is_folder(run.project):  # without the snapshot, the code's files are unknown
        return Written(complete=False)
    found: list[WrittenFile] = []
    for looked, name in enumerate(_names(run.work)):
        if looked == _MOST_ENTRIES:
            return Written(tuple(found), complete=False)
        there, before = _look(run.work / name), _look(run.project / name)
        if there and (before is None or _content(there) != _content(before)):
            found.append(WrittenFile(name, there.st_size, there.st_mtime))
    return Written(tuple(found))


def _names(folder: Path) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        yield from (os.path.relpath(Path(parent, name), folder) for name in sorted(names))


def _look(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None


def _content(status: os.stat_result) -> tuple[int, int, int]:
    """What changes when a file is written; in microseconds, as cp may not keep nanoseconds."""
    return stat.S_IFMT(status.st_mode), status.st_size, status.st_mtime_ns // 1000
