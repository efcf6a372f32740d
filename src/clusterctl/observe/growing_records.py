"""Records of a file of JSON lines as it grows, in bounded time: of what is too much, blocks spread evenly over it."""

from __future__ import annotations

import os
from typing import IO, TYPE_CHECKING, Any

from clusterctl.runs.files import open_regular, parse_record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_BYTES = 8 * 2**20  # of one look: about 50,000 steps, a fifth of a second
_BLOCK_BYTES = 65536
_SAMPLE_BYTES = 16384
_LONGEST_LINE_BYTES = 2**20


class GrowingRecords:
    """Each `read` yields the records that were added, or a sample of them where they are more than `most_bytes`."""

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        self.path = path
        self._most = max(most_bytes, 4 * _BLOCK_BYTES)
        self._offset = 0  # where the first line begins that was not yet read
        self._inode = 0
        self.sampled = False  # whether anything was passed over so far

    def read(self) -> Iterator[dict[str, Any]]:
        """The records added since the last call; nothing where there is no file. Torn and foreign lines are dropped."""
        try:
            file = open_regular(self.path)
        except OSError:
            return
        with file:
            end, number = file.seek(0, os.SEEK_END), os.fstat(file.fileno()).st_ino
            if end < self._offset or number != self._inode:  # it was compacted: written aside, and renamed
                self._offset, self._inode = 0, number
            if end - self._offset > self._most:
                yield from self._sample(file, end)
            yield from self._rest(file)

    def _sample(self, file: IO[bytes], end: int) -> Iterator[dict[str, Any]]:
        self.sampled = True
        first, last = self._offset, end - _SAMPLE_BYTES
        count = self._most // _SAMPLE_BYTES
        for number in range(count - 1):
            file.seek(first + number * (last - first) // (count - 1))
            lines = file.read(_SAMPLE_BYTES).split(b"\n")
            yield from _parsed(lines[:-1] if number == 0 else lines[1:-1])
        file.seek(last)
        self._offset = last + len(file.readline(_LONGEST_LINE_BYTES))

    def _rest(self, file: IO[bytes]) -> Iterator[dict[str, Any]]:
        file.seek(self._offset)
        torn = b""
        while block := file.read(_BLOCK_BYTES):
            seen = torn + block
            *lines, torn = seen.split(b"\n")
            if len(torn) > _LONGEST_LINE_BYTES:
                torn = b""  # no record of ours; what follows of it is none either
            self._offset += len(seen) - len(torn)
            yield from _parsed(lines)


def _parsed(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    return (record for line in lines if (record := parse_record(line)) is not None)
