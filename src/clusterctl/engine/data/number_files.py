"""Read numbers from gzipped text and numpy archives in chunks, with errors that name the file and the line.

numpy cannot map an array inside an archive and reads all of it; here, the members are read as streams.
"""

from __future__ import annotations

import gzip
import math
import warnings
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clusterctl.shared.errors import Cause, TaskError, reason
from clusterctl.shared.record.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_BYTES_AT_ONCE = 1 << 24
_COMMA, _NEWLINE = b",\n"


class FileRows(NamedTuple):
    """Some rows of a file, and their position."""

    path: Path
    first: int  # line of the text (from 1), or row of the array (from 0)
    rows: np.ndarray[Any, Any]  # [rows, columns]
    unit: str = "line"

    def require(self, good: np.ndarray[Any, Any], what: str, hint: str) -> None:
        """Raise TaskError for the first value that is not `good`, a mask of the rows: "FILE, line N: VALUE what"."""
        if not good.all():
            row, column = np.argwhere(~good)[0]
            raise bad_data(f"{self.path}, {self.unit} {self.first + row}: {self.rows[row, column]} {what}", hint)


def bad_data(message: str, hint: str) -> TaskError:
    """The error for a mistake in the data."""
    return TaskError(message, hint, Cause.DATA)


def folder_of(root: str | Path | None, hint: str) -> Path:
    """The folder of a data set. Raises TaskError if none is given."""
    if root is None:
        raise bad_data("this workload needs a data set, and data.root is not set", hint)
    return Path(root).resolve()


def states_of(folder: Path, parts: Iterable[str], hint: str) -> dict[str, list[int]]:
    """Size and time of each of these files in `folder`, to identify a data set. Raises TaskError."""
    states = {}
    for part in parts:
        try:
            status = (folder / part).stat()
        except OSError as error:
            raise bad_data(f"no data: {folder / part}: {error.strerror}", hint) from None
        states[part] = [status.st_size, status.st_mtime_ns]
    return states


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise bad_data(f"no data: {path}: no such file", "is the data set's folder complete?") from None
    except (OSError, EOFError, ValueError, KeyError, zlib.error, zipfile.BadZipFile, NotImplementedError) as error:
        raise bad_data(f"cannot read {path}: {reason(error)}", "is the file complete?") from error


def text_rows(path: Path, dtype: type[np.generic], columns: int | None = None) -> Iterator[FileRows]:
    """The lines of a headerless .csv.gz file, in at least one chunk; `columns` defaults to that of the first line.

    Raises TaskError.
    """
    first = 1
    for text in _whole_lines(path):
        columns = columns or text.partition(b"\n")[0].count(b",") + 1
        rows = _parsed(path, first, text, dtype, columns)
        yield FileRows(path, first, rows)
        first += len(rows)
    if first == 1:
        yield FileRows(path, first, np.empty((0, columns or 0), dtype))


def text_numbers(path: Path) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The contents of a .csv.gz file with one integer per line, int64. Raises TaskError."""
    return np.concatenate([piece.rows[:, 0] for piece in text_rows(path, np.int64, columns=1)])


def text_words(path: Path) -> list[list[str]]:
    """The fields of every line of a small .csv.gz file. Raises TaskError."""
    return [line.split(",") for text in _whole_lines(path) for line in text.decode(errors="replace").split("\n")]


def _whole_lines(path: Path) -> Iterator[bytes]:
    """The text in chunks of whole lines, without the last newline of each chunk."""
    rest = b""
    with _readable(path):
        compressed = open_regular(path)
    with compressed, gzip.open(compressed) as file:  # the caller's exceptions are not errors of this file
        while True:
            with _readable(path):
                block = file.read(_BYTES_AT_ONCE)
            whole, newline, rest = (rest + block).replace(b"\r", b"").rpartition(b"\n")
            if newline:
                yield whole
            if not block:
                break
    if rest:
        yield rest


def _parsed(path: Path, first: int, text: bytes, dtype: type[np.generic], columns: int) -> np.ndarray[Any, Any]:
    symbols = np.frombuffer(text + b"\n", dtype=np.uint8)
    marks = symbols[(symbols == _COMMA) | (symbols == _NEWLINE)]
    is_end = np.arange(marks.size) % columns == columns - 1
    if marks.size % columns == 0 and ((marks == _NEWLINE) == is_end).all():
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy only warns, and stops, at text that is not a number
            try:
                return np.fromstring(text.replace(b"\n", b","), dtype=dtype, sep=",").reshape(-1, columns)
            except (DeprecationWarning, ValueError):
                pass
    raise _first_mistake(path, first, text, dtype, columns)


def _first_mistake(path: Path, first: int, text: bytes, dtype: type[np.generic], columns: int) -> TaskError:
    kind, words = (int, "whole number") if np.issubdtype(dtype, np.integer) else (float, "number")
    lines = text.decode(errors="replace").split("\n")
    for place, line in enumerate(lines, start=first):
        fields = line.split(",")
        if len(fields) != columns:
            return bad_data(f"{path}, line {place}: {len(fields)} columns, not {columns}", "is the file complete?")
        for field in fields:
            try:
                kind(field)
            except ValueError:
                return bad_data(f"{path}, line {place}: {field!r} is not a {words}", "correct the line, or remove it")
    message = f"cannot read {path}, lines {first} to {first + len(lines) - 1}"
    return bad_data(message, "numbers may be too large, or in a format that only Python reads")


class ArchivedArray:
    """An array in a .npz archive, with its shape, type and order. Raises TaskError."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        with self._open() as file:
            self.shape, self.by_column, self.dtype = self._header(file)
        if self.dtype.hasobject:
            raise bad_data(f"{path}: {name} holds Python objects, not numbers", "save it as numbers")

    def values(self, at_once: int | None = None) -> Iterator[np.ndarray[Any, Any]]:
        """All values in the order of the file, in chunks of `at_once`."""
        total, at_once = math.prod(self.shape), at_once or max(1, _BYTES_AT_ONCE // self.dtype.itemsize)
        with self._open() as file:
            self._header(file)
            for start in range(0, total, at_once):
                size = min(at_once, total - start) * self.dtype.itemsize
                with _readable(self.path):
                    content = file.read(size)
                    if len(content) < size:
                        raise EOFError(f"{self.name} ends too early")
                yield np.frombuffer(content, dtype=self.dtype)

    def rows(self) -> Iterator[FileRows]:
        """All rows, as [rows, columns], in at least one chunk; in a 1-D array, each value is a row."""
        columns = math.prod(self.shape[1:])
        if self.by_column and columns > 1:
            hint = "save it in C order: numpy.ascontiguousarray"
            raise bad_data(f"{self.path}: {self.name} is stored column by column", hint)
        at_once = max(1, _BYTES_AT_ONCE // max(1, columns * self.dtype.itemsize))
        first = 0
        for values in self.values(at_once * max(1, columns)):
            yield FileRows(self.path, first, values.reshape(-1, columns), f"{self.name}, row")
            first += at_once
        if first == 0:
            yield FileRows(self.path, first, np.empty((math.prod(self.shape[:1]), columns), dtype=self.dtype))

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        with _readable(self.path):
            archive = zipfile.ZipFile(self.path)
        with archive:
            if f"{self.name}.npy" not in archive.namelist():
                hint = f"it has {', '.join(archive.namelist())}"
                raise bad_data(f"{self.path} has no array {self.name}", hint)
            with _readable(self.path):
                file = archive.open(f"{self.name}.npy")
            with file:
                yield file

    def _header(self, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        with _readable(self.path):
            version = np.lib.format.read_magic(file)
            readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            return readers[version](file)
