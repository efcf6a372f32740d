"""Preparing the next batches in a thread while the present one is computed; what comes out does not depend on it."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_AHEAD = 2  # a second one in waiting evens out slow batches

T = TypeVar("T")
P = TypeVar("P")


def prefetched(items: Iterable[T], prepare: Callable[[T], P]) -> Iterator[tuple[T, P]]:
    """Each item with what `prepare` makes of it, in order; an error of `prepare` is raised at its item.

    One thread, no processes: nothing is copied, and nothing needs shared memory. It computes with one core, as all of
    them belong to the step.
    """
    waiting: deque[tuple[T, Future[P]]] = deque()
    with ThreadPoolExecutor(1, "prefetch", torch.set_num_threads, (1,)) as pool:
        for item in items:
            waiting.append((item, pool.submit(prepare, item)))
            if len(waiting) > _AHEAD:
                ready, prepared = waiting.popleft()
                yield ready, prepared.result()
        for ready, prepared in waiting:
            yield ready, prepared.result()
