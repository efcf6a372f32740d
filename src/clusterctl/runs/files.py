"""Reading and writing the run directory's files: one writer a file, whole lines appended, the rest written aside."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_FULL = (errno.ENOSPC, errno.EDQUOT)
_MOST_LEFT = 1 << 20
_MOST_BYTES = 1 << 24  # of a file that is read whole; ours have a few kilobytes


class NotAFile(OSError):
    """A folder, a named pipe or a device has the name of a file."""


def make_private(folder: Path) -> Path:
    """Make `folder` and its parents, `folder` readable by its owner alone."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def write_text(path: Path, text: str, mode: int = 0o600) -> None:
    """Write aside, then rename: a reader sees the old file or the new one, whichever threads and processes write."""
    aside = path.with_name(f".{path.name}.{threading.get_native_id()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    aside.replace(path)


def write_json(path: Path, record: Any) -> None:
    write_text(path, json.dumps(record, indent=1) + "\n")


def open_regular(path: Path, buffering: int = -1) -> IO[bytes]:
    """Open a regular file for reading; raises NotAFile for anything else, where a named pipe would block for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotAFile(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb", buffering)


def read_whole(path: Path) -> bytes:
    """The content of a small file; raises ValueError for a file that is no small one."""
    with open_regular(path) as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"larger than {_MOST_BYTES >> 20} MiB")
    return content


def read_json(path: Path) -> Any:
    """The record in `path`, or None where there is none yet."""
    try:
        return json.loads(read_whole(path))
    except FileNotFoundError:
        return None


def exists(path: Path) -> bool:
    """Whether there is something at `path`; False, and no error, where its folder may not be searched."""
    return os.path.exists(path)  # noqa: PTH110 - pathlib's raises


def modified_at(path: Path) -> int:
    """When `path` last changed, in nanoseconds; 0 where it cannot be told. A folder changes with the names in it."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def nearest_existing(path: Path) -> Path:
    """`path`, or the nearest folder above it that exists."""
    return next((folder for folder in (path, *path.parents) if exists(folder)), Path("/"))


def is_listed(path: Path) -> bool:
    """Whether `path` exists, by listing its folder: NFS remembers for a while that a name did not exist."""
    try:
        return path in path.parent.iterdir()
    except FileNotFoundError:
        return False


class Lines:
    """An append-only file of JSON lines. One write(2) with O_APPEND a line: whole, or torn and last.

    What a full disk does not take is written with a later line, when there is room again.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self._left = b""
        self._lock = threading.RLock()  # the checkpoint's thread records events too

    def append(self, record: dict[str, Any]) -> None:
        """Append one line. Raises OSError for a disk that is not merely full, or has been for a megabyte of lines."""
        with self._lock:
            self._left += json.dumps(record).encode() + b"\n"
            try:
                while self._left:
                    self._left = self._left[os.write(self._descriptor, self._left) :]
            except OSError as error:
                if error.errno not in _FULL or len(self._left) > _MOST_LEFT:
                    raise

    def close(self) -> None:
        os.close(self._descriptor)


def append(path: Path, content: bytes) -> int:
    """Append lines to a file that nobody else writes; how many bytes of them a disk took that then was full.

    Opened and closed each time: closing is what makes NFS send it.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    written = 0
    try:
        while written < len(content):
            written += os.write(descriptor, content[written:])
    except OSError as error:
        if error.errno not in _FULL:
            raise
    finally:
        os.close(descriptor)
    return written


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file of JSON lines; nothing where there is no file, no torn or foreign line."""
    try:
        with open_regular(path) as file:
            content = file.read()
    except FileNotFoundError:
        return
    for line in content.split(b"\n")[:-1]:  # what follows the last newline is torn, or empty
        if (record := parse_record(line)) is not None:
            yield record


def parse_record(line: bytes) -> dict[str, Any] | None:
    """One JSON object, or None for a line that is none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None
