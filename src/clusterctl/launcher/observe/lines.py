"""Reading growing files: their last lines, lines added since, and logs as text; `pattern`, equal for like messages.

Files are polled and reopened each time: inotify does not work on NFS, and only opening a file revalidates its cache.
"""

from __future__ import annotations

import errno
import functools
import os
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from clusterctl.shared.record.files import open_regular, parse_record, read_regular, status_of, with_retries
from clusterctl.shared.record.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path


_BLOCK_BYTES = 65536
_FIRST_BLOCK_BYTES = 4096
_MOST_EXTENTS = 10_000
MOST_BYTES = 8 * 2**20  # per read of records: about 50,000 steps, a fifth of a second
_SAMPLE_BYTES = 16384
_RECORD_BYTES = 8192  # hardly any record is half as long
_LONGEST_LINE_BYTES = 2**20  # longer lines are returned in pieces
_LOG_BYTES = 2**18
MISSING = "missing"


class Growing:
    """A file read incrementally: each `read` returns the complete lines that were added, without newlines.

    Holes of a sparse file are skipped. A file that cannot be read has no lines, and `problem` has the reason.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.problem = ""
        self.offset = offset  # of the unread part
        self._torn = b""

    def read(self) -> list[bytes]:
        """The lines added since the last call; none if there is no file yet."""
        return list(self.added())

    def added(self, block_bytes: int = 2**20) -> Iterator[bytes]:
        """Like `read`, but holding at most `block_bytes` of the file in memory."""
        for _, block in self.placed_blocks(block_bytes):
            yield from block.split(b"\n")

    def placed_blocks(self, block_bytes: int = 2**20) -> Iterator[tuple[int, bytes]]:
        """The lines added since the last call in blocks, without the last newline, each with its offset.

        The file is reopened for each block. The first blocks are small, so that the first lines of many files are
        available at once.
        """
        size = min(_FIRST_BLOCK_BYTES, block_bytes)
        more = True
        while more:
            block, more = self._next_block(size)
            size = min(4 * size, block_bytes)
            lines, ended, self._torn = (self._torn + block).rpartition(b"\n")
            if ended:
                yield self.offset - len(self._torn) - 1 - len(lines), lines
            if len(self._torn) >= _LONGEST_LINE_BYTES:
                yield from self.placed_rest()

    @property
    def unfinished(self) -> bytes:
        """What was read of a line that has no newline yet, such as a progress bar."""
        return self._torn

    def rest(self) -> list[bytes]:
        """The last line if it has no newline: for when writing has ended."""
        return [rest for _, rest in self.placed_rest()]

    def placed_rest(self) -> list[tuple[int, bytes]]:
        """Like `rest`, with the offset of the line."""
        rest, self._torn = self._torn, b""
        return [(self.offset - len(rest), rest)] if rest else []

    def _next_block(self, block_bytes: int) -> tuple[bytes, bool]:
        """The next block, and whether there is more after it."""

        def read(file: IO[bytes]) -> tuple[int, bytes, int]:
            offset = _next_data(file.fileno(), self.offset)
            file.seek(offset)
            return offset, file.read(block_bytes), os.fstat(file.fileno()).st_size

        try:
            offset, block, size = read_regular(self.path, read, buffering=0)
            self.offset = offset + len(block)
            return block, bool(block) and self.offset < size
        except (FileNotFoundError, NotADirectoryError):  # not there yet
            return b"", False
        except OSError as error:
            self.problem = error.strerror or str(error)
            return b"", False


def last_lines_offset(path: Path, count: int, block_bytes: int = _BLOCK_BYTES) -> int:
    """The offset of the last `count` lines of `path`, found from its end; 0 if it has fewer or does not exist."""

    def find(file: IO[bytes]) -> int:
        size = file.seek(0, os.SEEK_END)
        wanted = count + 1  # the newline that ends the line before
        if size and file.seek(size - 1) is not None and file.read(1) != b"\n":
            wanted -= 1  # the last line has no newline
        if wanted == 0:
            return size
        for begin, end in reversed(_extents(file.fileno(), size)):
            position = end
            while position > begin:
                start = max(begin, position - block_bytes)
                file.seek(start)
                block = file.read(position - start)
                here = block.count(b"\n")
                if here >= wanted:
                    return start + len(block.rsplit(b"\n", wanted)[0]) + 1
                wanted -= here
                position = start
        return 0

    return _place(path, find)


def offset_of_time(path: Path, since: float, time_of: Callable[[bytes], float | None]) -> int:
    """The offset of a line before which all lines are older than `since`, by bisection; 0 if lines have no times.

    `time_of` returns the time at the start of a line, or None without one.
    """

    def find(file: IO[bytes]) -> int:
        low, high = 0, file.seek(0, os.SEEK_END)
        while high - low > _BLOCK_BYTES:
            middle = (low + high) // 2
            file.seek(middle)
            lines = file.read(_BLOCK_BYTES).split(b"\n")[1:-1]  # the first is incomplete, and the last may be
            time = next((found for line in lines if (found := time_of(line)) is not None), None)
            if time is None:
                break
            low, high = (middle, high) if time < since else (low, middle)
        file.seek(low)
        return low + len(file.readline()) if low else 0

    return _place(path, find)


def _place(path: Path, find: Callable[[IO[bytes]], int]) -> int:
    """The offset that `find` returns, or 0 if the file cannot be read: reading it later reports the error."""
    try:
        return read_regular(path, find)
    except OSError:
        return 0


def _extents(descriptor: int, size: int) -> list[tuple[int, int]]:
    """The start and end of each written part of a file, in order."""
    found: list[tuple[int, int]] = []
    begin = 0
    while len(found) < _MOST_EXTENTS and (begin := _next_data(descriptor, begin)) < size:
        try:
            end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        except OSError:
            end = size
        found.append((begin, end))
        begin = end
    return found if begin >= size else [(0, size)]


def _next_data(descriptor: int, offset: int) -> int:
    """The next written position: `offset` itself, or the end of the hole that contains it."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:  # a file system without sparse files
            return offset
        return max(offset, os.fstat(descriptor).st_size)


def tail(path: Path, most_bytes: int = _BLOCK_BYTES) -> tuple[list[bytes], str]:
    """The last complete lines within `most_bytes`, of which the first may be cut; and the reason if there are none.

    A missing file has neither lines nor a problem.
    """

    def read(file: IO[bytes]) -> list[bytes]:
        file.seek(max(0, file.seek(0, os.SEEK_END) - most_bytes))
        return file.read().split(b"\n")[:-1]

    try:
        return read_regular(path, read), ""
    except (FileNotFoundError, NotADirectoryError):
        return [], ""
    except OSError as error:
        return [], error.strerror or str(error)


def last_lines(path: Path, most_bytes: int = _BLOCK_BYTES) -> list[bytes]:
    """The lines of `tail`; an unreadable file has none."""
    lines, _ = tail(path, most_bytes)
    return lines


class Text(NamedTuple):
    """The lines of a log, without empty ones and control characters; `problem` is why it could not be read."""

    lines: tuple[str, ...] = ()
    problem: str = ""


def text_lines(path: Path, most_bytes: int, *, head: bool = False) -> Text:
    """The last lines of a log; with `head`, also the first lines of a longer one."""
    return _text(path, lambda file: _decoded(file, most_bytes, head))


def log_lines(path: Path, *, head: bool = False) -> Text:
    """Like `text_lines`, for a log of a run or attempt, read once for its status and for `why`, which explains it."""

    def read(file: IO[bytes]) -> tuple[str, ...]:
        found = os.fstat(file.fileno())
        return _kept_lines(_OpenLog(path, head, (found.st_ino, found.st_size, found.st_mtime_ns), file))

    return _text(path, read)


@dataclass(frozen=True)
class _OpenLog:
    """An open log, equal to the same one opened earlier unless it has changed."""

    path: Path
    head: bool
    identity: tuple[int, ...]
    file: IO[bytes] = field(compare=False)


@functools.lru_cache(maxsize=4)
def _kept_lines(log: _OpenLog) -> tuple[str, ...]:
    return _decoded(log.file, _LOG_BYTES, log.head)


def _text(path: Path, read: Callable[[IO[bytes]], tuple[str, ...]]) -> Text:
    try:
        return Text(read_regular(path, read))
    except (FileNotFoundError, NotADirectoryError):
        return Text(problem=MISSING)
    except OSError as error:
        return Text(problem=error.strerror or str(error))


def _decoded(file: IO[bytes], most_bytes: int, head: bool) -> tuple[str, ...]:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    begin = file.read(most_bytes).rpartition(b"\n")[0] + b"\n" if head and size > most_bytes else b""
    start = file.seek(max(len(begin), size - most_bytes))
    end = file.read(most_bytes)
    if start > len(begin):  # in the middle of a line
        end = end.partition(b"\n")[2]
    text = (begin + end).decode(errors="replace").replace("\r", "\n")
    return tuple(clean for line in text.split("\n") if (clean := plain(line)).strip())


class GrowingRecords:
    """Each `read` yields the records that were added, or a sample of them if they exceed `most_bytes`.

    With `most_records`, the sample consists of that many single records instead of blocks.
    """

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES, most_records: int | None = None) -> None:
        self.path = path
        self._most = max(most_bytes, 4 * _SAMPLE_BYTES)
        self._block = _SAMPLE_BYTES
        if most_records is not None:
            self._most, self._block = max(most_bytes, _RECORD_BYTES), _RECORD_BYTES
        self._most_records = most_records
        self._offset = 0  # of the first unread line
        self._inode, self._size = 0, -1  # of the file when last read
        self.sampled = False  # whether anything was skipped so far

    def read(self) -> Iterator[dict[str, Any]]:
        """The records added since the last call; none if there is no file. Incomplete and foreign lines are dropped."""
        with suppress(OSError), open_regular(self.path) as file:
            found = os.fstat(file.fileno())
            self._size = end = found.st_size
            if end < self._offset or found.st_ino != self._inode:  # compacted: rewritten and renamed
                self._offset, self._inode = 0, found.st_ino
            if end - self._offset > self._most:  # too much to read: blocks spread evenly over it, and the last one
                self.sampled = True
                first, last = self._offset, end - self._block
                count = self._most_records or self._most // self._block
                for number in range(count - 1):
                    lines = _read_at(file, first + number * (last - first) // (count - 1), self._block).split(b"\n")
                    whole = lines[:-1] if number == 0 else lines[1:-1]
                    yield from records_in(whole if self._most_records is None else whole[:1])
                block = _read_at(file, last, self._block)
                if self._most_records is None:
                    self._offset = last + block.find(b"\n") + 1
                else:  # from the last complete line on
                    self._offset = last + block.rfind(b"\n", 0, max(0, block.rfind(b"\n"))) + 1
            torn = b""
            while block := _read_at(file, self._offset + len(torn), _BLOCK_BYTES):
                seen = torn + block
                *lines, torn = seen.split(b"\n")
                if len(torn) > _LONGEST_LINE_BYTES:
                    torn = b""  # not a record of ours; nor is the rest of the line
                self._offset += len(seen) - len(torn)
                yield from records_in(lines)

    def changed(self) -> bool:
        """Whether the file seems to have changed since it was last read; NFS may report it half a minute late."""
        try:
            found = status_of(self.path)
        except OSError:
            return False
        return (found.st_ino, found.st_size) != (self._inode, self._size)


def _read_at(file: IO[bytes], offset: int, size: int) -> bytes:
    return with_retries(lambda: os.pread(file.fileno(), size, offset))


def records_in(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects in `lines`, parsed lazily; incomplete and foreign lines are dropped."""
    return (record for line in lines if (record := parse_record(line)) is not None)


_VARYING = re.compile(r"0x[0-9a-f]+|\d+")  # ranks, ports, addresses


def pattern(message: str) -> str:
    """`message` with every number replaced: equal for the same message of different ranks."""
    return _VARYING.sub("#", message)
