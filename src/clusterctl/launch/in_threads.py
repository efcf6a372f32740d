"""Process many files, several at a time if they are on another machine.

A file server answers eight requests in about the time of one. For local files threads would cost more than they save:
they compete for the GIL around many short calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_THREADS = 8
_IN_A_ROW = 64  # items per thread and turn

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(work: Callable[[Item], Result], items: Sequence[Item], *, remote: bool) -> Iterator[Result]:
    """Yield `work(item)` in order. After an error no new item is started, and all running ones have ended."""
    if not remote or len(items) <= _IN_A_ROW:
        yield from map(work, items)
        return
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(_THREADS)
    try:
        rows = (items[start : start + _IN_A_ROW] for start in range(0, len(items), _IN_A_ROW))
        for results in pool.map(lambda row: [*map(work, row)], rows):
            yield from results
    finally:
        pool.shutdown(cancel_futures=True)
