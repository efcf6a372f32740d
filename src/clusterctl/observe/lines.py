"""Reading files that grow: their last lines without the rest, and what was added since.

Files are polled and opened again at each look: inotify does nothing on NFS, and only opening revalidates its cache.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from clusterctl.runs.files import open_regular, parse_record, read_regular, status_of, with_retries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

_BLOCK_BYTES = 65536
_FIRST_BLOCK_BYTES = 4096
_MOST_EXTENTS = 10_000
MOST_BYTES = 8 * 2**20  # of one look at records: about 50,000 steps, a fifth of a second
_SAMPLE_BYTES = 16384
_RECORD_BYTES = 8192  # hardly any record is half as long
_LONGEST_LINE_BYTES = 2**20  # what has no newline until then is handed out as it is


class Growing:
    """A file read bit by bit: each `read` returns the whole lines that were added, without their newline.

    The holes of a sparse file are passed over: nobody wrote there. A file that cannot be read has no lines, and its
    `problem` says why.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.problem = ""
        self.offset = offset  # of what was not yet read
        self._torn = b""

    def read(self) -> list[bytes]:
        """The lines added since the last call; nothing where there is no file yet."""
        return list(self.added())

    def added(self, block_bytes: int = 2**20) -> Iterator[bytes]:
        """As `read`, but never more than `block_bytes` of the file are held."""
        for block in self.blocks(block_bytes):
            yield from block.split(b"\n")

    def blocks(self, block_bytes: int = 2**20) -> Iterator[bytes]:
        """The lines added since the last call, many at a time, the last one without its newline."""
        return (block for _, block in self.placed_blocks(block_bytes))

    def placed_blocks(self, block_bytes: int = 2**20) -> Iterator[tuple[int, bytes]]:
        """As `blocks`, each with the offset at which it begins.

        The file is opened anew for each block. The first blocks are small: of many files the first lines are there at
        once.
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

    def rest(self) -> list[bytes]:
        """The last line if it ended without a newline: for when nobody writes any more."""
        return [rest for _, rest in self.placed_rest()]

    def placed_rest(self) -> list[tuple[int, bytes]]:
        """As `rest`, with the offset at which it begins."""
        rest, self._torn = self._torn, b""
        return [(self.offset - len(rest), rest)] if rest else []

    def _next_block(self, block_bytes: int) -> tuple[bytes, bool]:
        """What comes next, and whether there is more after it."""

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
    """Where the last `count` lines of `path` begin, found from its end; 0 where it has fewer, or does not exist."""

    def find(file: IO[bytes]) -> int:
        size = file.seek(0, os.SEEK_END)
        wanted = count + 1  # the newline that ends the line before
        if size and file.seek(size - 1) is not None and file.read(1) != b"\n":
            wanted -= 1  # the last line is not ended
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
    """Where a line begins before which no line has a time from `since` on, by bisection; 0 where lines have no times.

    `time_of` gives the time that a line begins with, None for one that begins with none.
    """

    def find(file: IO[bytes]) -> int:
        low, high = 0, file.seek(0, os.SEEK_END)
        while high - low > _BLOCK_BYTES:
            middle = (low + high) // 2
            file.seek(middle)
            lines = file.read(_BLOCK_BYTES).split(b"\n")[1:-1]  # the first is cut off, so may be the last
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
    """The parts of a file that were ever written: begin and end, in order."""
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
    """Where, from `offset` on, something was written: `offset` itself, or the end of the hole that it lies in."""
    try:
        return os.lseek(descriptor, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:  # a file system without holes
            return offset
        return max(offset, os.fstat(descriptor).st_size)


def tail(path: Path, most_bytes: int = _BLOCK_BYTES) -> tuple[list[bytes], str]:
    """The last whole lines, as many as `most_bytes` hold, of which the first may be cut; and why there are none.

    A file that is not there (yet) has neither lines nor a problem.
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
    """The lines of `tail`, for those who take a file that cannot be read for one that says nothing."""
    lines, _ = tail(path, most_bytes)
    return lines


class GrowingRecords:
    """Each `read` yields the records that were added, or a sample of them where they are more than `most_bytes`.

    With `most_records` the sample is of single records, so many, instead of blocks of them.
    """

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES, most_records: int | None = None) -> None:
        self.path = path
        self._most = max(most_bytes, 4 * _SAMPLE_BYTES)
        self._block = _SAMPLE_BYTES
        if most_records is not None:
            self._most, self._block = max(most_bytes, _RECORD_BYTES), _RECORD_BYTES
        self._most_records = most_records
        self._offset = 0  # where the first line begins that was not yet read
        self._inode, self._size = 0, -1  # of the file as it was read last
        self.sampled = False  # whether anything was passed over so far

    def read(self) -> Iterator[dict[str, Any]]:
        """The records added since the last call; nothing where there is no file. Torn and foreign lines are dropped."""
        with suppress(OSError), open_regular(self.path) as file:
            found = os.fstat(file.fileno())
            self._size = end = found.st_size
            if end < self._offset or found.st_ino != self._inode:  # it was compacted: written aside, and renamed
                self._offset, self._inode = 0, found.st_ino
            if end - self._offset > self._most:
                yield from self._sample(file, end)
            yield from self._rest(file)

    def changed(self) -> bool:
        """Whether the file seems to be another than was read last; on NFS that may be known half a minute late."""
        try:
            found = status_of(self.path)
        except OSError:
            return False
        return (found.st_ino, found.st_size) != (self._inode, self._size)

    def _sample(self, file: IO[bytes], end: int) -> Iterator[dict[str, Any]]:
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
        else:  # from the last whole line on
            self._offset = last + block.rfind(b"\n", 0, max(0, block.rfind(b"\n"))) + 1

    def _rest(self, file: IO[bytes]) -> Iterator[dict[str, Any]]:
        torn = b""
        while block := _read_at(file, self._offset + len(torn), _BLOCK_BYTES):
            seen = torn + block
            *lines, torn = seen.split(b"\n")
            if len(torn) > _LONGEST_LINE_BYTES:
                torn = b""  # no record of ours; what follows of it is none either
            self._offset += len(seen) - len(torn)
            yield from records_in(lines)


def _read_at(file: IO[bytes], offset: int, size: int) -> bytes:
    return with_retries(lambda: os.pread(file.fileno(), size, offset))


def records_in(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects in `lines`, each parsed when it is asked for; torn and foreign lines are dropped."""
    return (record for line in lines if (record := parse_record(line)) is not None)
