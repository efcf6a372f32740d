"""Reads and writes files of the run directory: one writer per file; logs are appended by line, others replaced.

Also which file systems are local, and which make changes visible on all nodes at once.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from io import BufferedReader


T = TypeVar("T")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_PASSING = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT)  # transient errors of network file systems
_PAUSES = (0.05, 0.3, 1.0)  # seconds
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_UNPAIRED = re.compile(r"[\ud800-\udc7f\udd00-\udfff]")  # the others are Python's for bytes (PEP 383)
_MOST_LEFT = 1 << 20
_HEAD = 256  # bytes of appended content used to find where it starts: comparing every length would take minutes
_MOST_BYTES = 1 << 24  # of a file that is read at once; ours have a few kilobytes


class NotAFile(OSError):
    """A folder, a named pipe or a device in place of a file."""


def with_retries(call: Callable[[], T]) -> T:
    """Run `call`, repeating it after transient errors. A call that failed may nevertheless have taken effect."""
    for pause in _PAUSES:
        try:
            return call()
        except OSError as error:
            if error.errno not in _PASSING:
                raise
            time.sleep(pause)
    return call()


def rename(path: Path, target: Path) -> Path:
    """Path.rename with retries."""
    again = False

    def once() -> Path:
        nonlocal again
        try:
            return path.rename(target)
        except FileNotFoundError:
            if again and exists(target):
                return target
            raise
        finally:
            again = True

    return with_retries(once)


def write_text(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace a file atomically, even with several writers: a reader sees either the old or the new content."""
    content = text.encode("utf-8", errors="surrogateescape")

    def write() -> None:
        with replacing(path, mode) as file:
            file.write(content)

    with_retries(write)


@contextmanager
def replacing(path: Path, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """A new file that replaces `path` when the context ends, or is removed after an error.

    Others may be able to write to the folder: the file gets a name that they cannot guess, and is never opened through
    something that already has that name, such as a link.
    """
    descriptor, aside = _new_beside(path, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        aside.replace(path)
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise


def _new_beside(path: Path, mode: int) -> tuple[int, Path]:
    """A new file with a name that nobody knows. If that exists nevertheless, its creation was repeated: take another.

    When a network file system answers ESTALE, the kernel repeats the whole open, which may have made the file.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    tries = 3
    while True:
        aside, tries = path.with_name(f".{path.name}.{os.urandom(4).hex()}"), tries - 1
        try:
            return os.open(aside, flags, mode), aside
        except FileExistsError:
            if not tries:
                raise


def write_json(path: Path, record: Any) -> None:
    write_text(path, json.dumps(record, indent=1) + "\n")


def write_first(path: Path, record: Any) -> bool:
    """Write the file whole, unless there is one: of several writers, on several nodes, one gets true."""
    aside = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    write_json(aside, record)
    try:
        with_retries(lambda: os.link(aside, path))  # also atomic on NFS; a rename would replace the other's
    except FileExistsError:
        return aside.stat().st_nlink > 1  # the first answer, that the link was made, was lost
    except OSError:  # a file system without links
        if exists(path):
            return False
        aside.rename(path)
    finally:
        aside.unlink(missing_ok=True)
    return True


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; raises NotAFile for anything else.

    Every file that somebody else may have made is opened in this way: a named pipe would block forever, a device may
    have no end.
    """
    return cast("BufferedReader", with_retries(lambda: _open(path, -1)))


def read_regular(path: Path, read: Callable[[IO[bytes]], T], buffering: int = -1) -> T:
    """Open a regular file and pass it to `read`, again after transient errors."""

    def once() -> T:
        with _open(path, buffering) as file:
            return read(file)

    return with_retries(once)


def _open(path: Path, buffering: int) -> IO[bytes]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotAFile(errno.EINVAL, "not a regular file", str(path))
    file = os.fdopen(descriptor, "rb", buffering)
    raw: Any = getattr(file, "raw", file)
    raw.name = os.fspath(path)  # for messages: by default it is the descriptor's number
    return file


def read_beginning(path: Path, most: int) -> bytes:
    """Up to `most` bytes of a regular file."""
    return read_regular(path, lambda file: file.read(most))


def read_whole(path: Path) -> bytes:
    """The content of a small file; raises ValueError if it is too large."""
    content = read_beginning(path, _MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"larger than {_MOST_BYTES >> 20} MiB")
    return content


def read_json(path: Path) -> Any:
    """The record in `path`, or None if the file does not exist yet."""
    try:
        return loaded(read_whole(path))
    except FileNotFoundError:
        return None


def loaded(content: bytes, unpaired: re.Pattern[str] = _UNPAIRED) -> Any:
    """The value in JSON, with U+FFFD for unpaired surrogates, as in "\\ud800", which no text file can hold.

    By default, those are kept that Python uses for bytes in a file's name. Raises ValueError, and RecursionError.
    """

    def written(value: Any) -> Any:
        if isinstance(value, str):
            return unpaired.sub("\ufffd", value)
        if isinstance(value, list):
            return [written(item) for item in value]
        if isinstance(value, dict):
            return {written(key): written(item) for key, item in value.items()}
        return value

    found = json.loads(content)
    return written(found) if any(sign in content for sign in (b"\\ud", b"\\uD", b"\xed")) else found


def status_of(path: Path) -> os.stat_result:
    """Path.stat with retries."""
    return with_retries(path.stat)


def names_in(folder: Path | str) -> list[str]:
    """os.listdir with retries; names take a third of the time of paths."""
    return with_retries(lambda: os.listdir(folder))  # noqa: PTH208


def exists(path: Path) -> bool:
    """Whether `path` exists; False, without an error, if its folder is not accessible."""
    try:
        status_of(path)
    except (OSError, ValueError):  # ValueError: not a valid file name
        return False
    return True


def is_folder(path: Path) -> bool:
    """Whether `path` is a folder or a link to one; otherwise like `exists`."""
    try:
        return stat.S_ISDIR(status_of(path).st_mode)
    except (OSError, ValueError):
        return False


def modified_at(path: Path) -> int:
    """When `path` last changed, in nanoseconds; 0 if unknown. A folder changes with the names in it."""
    try:
        return status_of(path).st_mtime_ns
    except OSError:
        return 0


def nearest_existing(path: Path) -> Path:
    """`path`, or the nearest folder above it that exists."""
    return next((folder for folder in (path, *path.parents) if exists(folder)), Path("/"))


def is_listed(path: Path) -> bool:
    """Whether `path` exists, determined by listing its folder: NFS caches the absence of a name for a while."""
    try:
        return path.name in names_in(path.parent)
    except FileNotFoundError:
        return False


class Lines:
    """An append-only file of JSON lines. One write(2) with O_APPEND per line: only the last line can be torn.

    Lines that do not fit on a full disk are written with a later line, when there is room again.
    """

    def __init__(self, path: Path, run: Path | None = None) -> None:
        """`run` must exist: if it was moved or removed while the run runs, it must not reappear."""
        if run is not None:
            status_of(run)
        with_retries(lambda: path.parent.mkdir(parents=True, exist_ok=True))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._path = path
        self._descriptor = with_retries(lambda: os.open(path, flags, 0o600))
        self._left = b""
        self._lock = threading.RLock()  # the checkpoint thread records events too

    def append(self, record: dict[str, Any]) -> None:
        """Append one line. Raises OSError, but for a full disk only once a megabyte of lines is waiting."""
        with self._lock:
            self._left += json.dumps(record).encode() + b"\n"
            self._left = self._left[_append(self._descriptor, self._path, self._left) :]
            if len(self._left) > _MOST_LEFT:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))

    def settle(self, seconds: float = 30.0) -> bool:
        """Write what waits for room, for up to `seconds`: no later line follows. Returns whether nothing waits."""
        deadline = time.monotonic() + seconds
        with self._lock:
            while self._left:
                with suppress(OSError):
                    self._left = self._left[_append(self._descriptor, self._path, self._left) :]
                if not self._left or time.monotonic() >= deadline:
                    break
                time.sleep(0.2)
            return not self._left

    def close(self) -> None:
        os.close(self._descriptor)


def append(path: Path, content: bytes) -> int:
    """Append lines to a file without other writers; returns how many bytes were written before the disk was full.

    Opened and closed each time: NFS sends the data when a file is closed.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    descriptor = with_retries(lambda: os.open(path, flags, 0o600))
    try:
        return _append(descriptor, path, content)
    finally:
        os.close(descriptor)


def _append(descriptor: int, path: Path, content: bytes) -> int:
    """Append to an open file without other writers; returns how many bytes were written before the disk was full."""
    written, pauses = 0, iter(_PAUSES)
    while written < len(content):
        try:
            written += os.write(descriptor, content[written:])
        except OSError as error:
            if error.errno in _FULL:
                break
            pause = next(pauses, None)
            if error.errno not in _PASSING or pause is None:
                raise
            time.sleep(pause)
            written = _already_written(path, content)
    return written


def _already_written(path: Path, content: bytes) -> int:
    """How much of `content` is already at the end of the file: a write reported as failed may have succeeded."""

    def last(file: IO[bytes]) -> bytes:
        file.seek(max(0, file.seek(0, os.SEEK_END) - len(content)))
        return file.read()

    end = read_regular(path, last)
    place = end.find(content[:_HEAD])
    while place >= 0:
        if content.startswith(end[place:]):
            return len(end) - place
        place = end.find(content[:_HEAD], place + 1)
    return next(size for size in range(min(len(content), _HEAD), -1, -1) if end.endswith(content[:size]))


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file of JSON lines, without torn or foreign lines; empty if there is no file."""
    try:
        content = read_regular(path, lambda file: file.read())
    except FileNotFoundError:
        return
    for line in content.split(b"\n")[:-1]:  # the part after the last newline is torn or empty
        if (record := parse_record(line)) is not None:
            yield record


def parse_record(line: bytes) -> dict[str, Any] | None:
    """The JSON object in a line, or None."""
    try:
        record = loaded(line, _SURROGATES)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def remove_tree(folder: Path) -> None:
    """Remove `folder` with its content, including read-only folders; follows no links.

    Raises OSError for files that cannot be removed.
    """
    for parent, _, _ in os.walk(folder):
        with suppress(OSError):
            os.chmod(parent, 0o700)  # noqa: PTH101 - of strings
    again = False

    def once() -> None:
        nonlocal again
        if not again or exists(folder):
            again = True
            shutil.rmtree(folder)

    with_retries(once)


# The kernel's names; the batch script uses those of stat(1). On a file server its own export looks local.
LOCAL = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"}
# Their servers invalidate client caches (docs/decisions/late-and-weak-file-systems.md).
PROMPT = LOCAL | {"ceph", "gpfs", "lustre"}
LATE_SECONDS = 70.0  # NFS caches a folder for up to a minute (acdirmax)
_ESCAPED = re.compile(r"\\([0-7]{3})")


class MountPoint(NamedTuple):
    device: int
    point: str
    kind: str


def mounts() -> Iterator[MountPoint]:
    """The mounted file systems, in order; see proc_pid_mountinfo(5)."""
    try:
        lines = os.fsdecode(Path("/proc/self/mountinfo").read_bytes()).splitlines()
    except OSError:
        return
    for line in lines:
        mount, _, source = line.partition(" - ")
        fields = mount.split(" ")
        major, _, minor = fields[2].partition(":")
        point = _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), fields[4])  # a space is \040
        yield MountPoint(os.makedev(int(major), int(minor)), point, source.split(" ", 1)[0])


def local_devices() -> frozenset[int]:
    """The devices whose files no other machine changes: only there does stat(2) show reliably whether a file changed.

    A network file system may return attributes up to a minute old unless the file is opened.
    """
    return frozenset(mount.device for mount in mounts() if mount.kind in LOCAL)


def lateness(path: Path) -> float:
    """For how many seconds this node may not see another node's changes in `path`."""
    resolved = Path(os.path.realpath(path))
    above = [mount for mount in mounts() if resolved.is_relative_to(mount.point)]
    kind = max(enumerate(above), key=lambda item: (len(item[1].point), item[0]), default=None)
    return 0.0 if kind is not None and kind[1].kind in PROMPT else LATE_SECONDS


def clock_ahead(folder: Path) -> float | None:
    """By how many seconds `folder`'s file server is ahead of this node's clock; None if no file can be created."""
    import tempfile

    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".clusterctl-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
            return os.stat(file.name).st_mtime - time.time()  # noqa: PTH116 - by name, which makes NFS ask the server
    except OSError:
        return None
