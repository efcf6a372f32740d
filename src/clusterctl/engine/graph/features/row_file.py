"""Rows of a table that is mapped from a file, read in large pieces by threads, bypassing the page cache.

A page fault of the mapping reads one page and waits for it. Here the rows of a whole batch are requested at once: they
are read in file order, many at a time, including the gap between two rows where that is cheaper than a second request.
The page cache is left to the graph's edges, which are mapped.
"""

from __future__ import annotations

import mmap
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import has_numba

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

PAGE = 4096  # O_DIRECT requires offsets, lengths and memory aligned to this on every file system
_GAP = 1 << 14  # bytes to read needlessly rather than issue another request
_MOST = 1 << 20  # bytes per request, plus its last row
_THREADS = 32
_WORTH_COMPILING = 1 << 28  # bytes of a table: importing numba takes a second


class RowsOnTheWay(NamedTuple):
    """Rows being read. `size` is the number of bytes read for them."""

    size: int
    parts: list[Future[None]]

    def wait(self) -> None:
        """Wait until all rows have been read."""
        for part in self.parts:
            part.result()


class RowFile:
    """The file of a mapped `table` [rows, width]; `begin` may be called from any thread.

    `path` opens the file if it has no name; the table is then at its beginning.
    With `direct`, reads bypass the page cache if the file system supports it; otherwise each read drops its pages.
    Direct reads are `compiled` by default if the table is large enough and numba is installed.
    """

    def __init__(
        self, table: Tensor, path: str | None = None, *, direct: bool = True, compiled: bool | None = None
    ) -> None:
        path, self._start = (path, 0) if path else mapped_from(table)
        self._width, self._dtype = table.size(1), table.dtype
        self._row = self._width * table.element_size()
        self._file, self._direct = _opened(path, direct)
        self._threads = ThreadPoolExecutor(_THREADS, "read-rows", torch.set_num_threads, (1,))
        self._own = threading.local()
        self._most = _MOST + -(-self._row // PAGE) * PAGE + PAGE
        if compiled is None:
            compiled = table.nbytes >= _WORTH_COMPILING and has_numba()
        self._compiled = compiled and self._direct and self._start % self._dtype.itemsize == 0

    def begin(self, ids: Tensor, rows: Tensor, places: Tensor) -> RowsOnTheWay:
        """Start reading the rows `ids` (int64, ascending, may repeat) into these `places` of `rows`."""
        if ids.numel() == 0:
            return RowsOnTheWay(0, [])
        numbers = ids.numpy()
        offsets = self._start + numbers * self._row
        begins = offsets // PAGE * PAGE
        ends = -(-(offsets + self._row) // PAGE) * PAGE
        # Rows are read together if their pages are near each other, up to a largest piece.
        apart = (begins[1:] - ends[:-1] > _GAP) | (begins[1:] // _MOST != begins[:-1] // _MOST)
        firsts = np.flatnonzero(np.append(True, apart))
        lasts = np.append(firsts[1:], len(offsets))  # + 1
        begins, ends, lowest = begins[firsts], ends[lasts - 1], numbers[firsts]
        inside = torch.from_numpy(numbers - lowest.repeat(lasts - firsts))
        skipped = offsets[firsts] - begins  # from the beginning of the page to the first row
        spans = numbers[lasts - 1] - lowest + 1
        columns = np.column_stack([firsts, lasts, begins, ends, skipped, skipped + spans * self._row])
        shares = np.array_split(columns, min(_THREADS, len(columns)))
        parts = [self._threads.submit(self._read, share, inside, rows, places) for share in shares]
        return RowsOnTheWay(int((ends - begins).sum()), parts)

    def _read(self, requests: Numbers, inside: Tensor, rows: Tensor, places: Tensor) -> None:
        """Read pieces of the file, and copy the rows `inside` each piece to their places."""
        if not hasattr(self._own, "memory"):  # this thread's own page-aligned buffer
            self._own.memory = _own_pages(self._most)
        scratch: mmap.mmap = self._own.memory
        view, content = memoryview(scratch), torch.frombuffer(scratch, dtype=torch.uint8)
        done = 0
        if self._compiled:
            from clusterctl.engine.graph.compiled import convertible, read_rows  # numba takes a second

            if convertible(self._dtype, rows.dtype):
                done = read_rows(self._file, PAGE, requests, content.view(self._dtype), inside, rows, places)
        for first, last, begin, end, start, stop in requests[done:].tolist():  # all, or those from a failed one on
            self._fill(view[: end - begin], begin, stop)
            found = content[start:stop].view(self._dtype).view(-1, self._width)
            wanted = found.index_select(0, inside[first:last])
            rows.index_copy_(0, places[first:last], wanted.to(rows.dtype))

    def _fill(self, view: memoryview, begin: int, needed: int) -> None:
        """Read the file from `begin` on; the last page may extend beyond the end of the file."""
        done = 0
        while done < needed:
            page = done - done % PAGE  # a short read may end anywhere
            reached = page + os.preadv(self._file, [view[page:]], begin + page)
            if reached <= done:
                raise OSError(f"the file of the features ends before byte {begin + needed}")
            done = reached
        if not self._direct:
            os.posix_fadvise(self._file, begin, len(view), os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Wait for pending reads, and close the file."""
        self._threads.shutdown()
        os.close(self._file)


def new_rows(count: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Rows [count, width] for `begin`, with pages of their own; for a GPU, in pinned memory, which torch keeps.

    glibc would put them into a heap of the fetching thread, and could not return it while any later rows are in use.
    """
    if device.type == "cuda":
        return torch.empty(count, width, dtype=dtype, pin_memory=True)
    if count * width == 0:
        return torch.empty(count, width, dtype=dtype)
    memory = _own_pages(count * width * dtype.itemsize)
    memory.madvise(mmap.MADV_HUGEPAGE)  # one page fault for 2 MB
    return torch.frombuffer(memory, dtype=dtype).view(count, width)


def _own_pages(size: int) -> mmap.mmap:
    """Memory of this process alone: by default, mmap's is shared with forked ones, and never in pages of 2 MB."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def mapped_from(tensor: Tensor) -> tuple[str, int]:
    """The file that a tensor's memory is mapped from, and the offset of its first byte there (see proc(5))."""
    address = tensor.data_ptr()
    with Path("/proc/self/maps").open(encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            bounds, _, offset, _, _, *rest = line.rstrip("\n").split(maxsplit=5)
            path = (rest[0] if rest else "").replace("\\012", "\n")
            start, stop = (int(bound, 16) for bound in bounds.split("-"))
            if start <= address < stop and path.startswith("/"):
                return path, int(offset, 16) + address - start
    raise ValueError("the features are not mapped from a file")


def _opened(path: str, direct: bool) -> tuple[int, bool]:
    """The open file, and whether its reads bypass the page cache; not every file system supports that."""
    if direct:
        with suppress(OSError):
            file = os.open(path, os.O_RDONLY | os.O_DIRECT)
            try:
                os.preadv(file, [_own_pages(PAGE)], 0)
            except OSError:
                os.close(file)
                raise
            return file, True
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    return file, False
