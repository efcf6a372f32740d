"""Rows that a thread gathers one batch ahead of the one in use.

The loop prepares several batches ahead, but a fetch holds memory for its rows from the start: so it begins only when
the previous one is used.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from clusterctl.engine.task.worker import Worker, queued

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from clusterctl.engine.task.worker import Later

Nodes = TypeVar("Nodes")
Rows = TypeVar("Rows")


class Fetched(NamedTuple, Generic[Rows]):
    """Rows, metrics of their fetch, and how many of them the hit rate refers to."""

    rows: Rows
    numbers: dict[str, float]
    counted: int = 0


class FetchesAhead(Generic[Nodes, Rows]):
    """Calls `gather` for the nodes of each fetch in one thread, in the order of the requests.

    A fetch that is used out of turn is gathered before those that are still waiting.
    """

    def __init__(self, gather: Callable[[Nodes], Fetched[Rows]], device: torch.device) -> None:
        self._gather, self.device = gather, device
        self._thread = Worker("gather", device)
        self._lock = Lock()
        self._waiting: deque[FetchAhead[Nodes, Rows]] = deque()
        self._ahead: FetchAhead[Nodes, Rows] | None = None

    def fetch(self, nodes: Nodes) -> FetchAhead[Nodes, Rows]:
        """Request the rows of these nodes (int64)."""
        fetch = FetchAhead(self, nodes)
        with self._lock:
            self._waiting.append(fetch)
            self._begin_next()
        return fetch

    def begun(self, fetch: FetchAhead[Nodes, Rows]) -> Later[Fetched[Rows]]:
        """The rows of a fetch that is about to be used; also starts the next fetch."""
        with self._lock:
            if fetch is self._ahead:
                self._ahead = None
            if fetch.begun is None:  # out of turn
                self._waiting.remove(fetch)
                fetch.begun = self._thread.submit(self._gather, fetch.nodes, after=fetch.ready)
            self._begin_next()
        return fetch.begun

    def after(self, work: Callable[[], None]) -> None:
        """Run `work` in the same thread, after the fetches that have begun, and wait for it."""
        self._thread.submit(work).result()

    def _begin_next(self) -> None:
        """Keep only one fetch ahead, however many were requested: each holds memory from the start."""
        if self._ahead is None and self._waiting:
            self._ahead = self._waiting.popleft()
            self._ahead.begun = self._thread.submit(self._gather, self._ahead.nodes, after=self._ahead.ready)


class FetchAhead(Generic[Nodes, Rows]):
    """Rows that are read ahead of their use if they are next."""

    def __init__(self, fetches: FetchesAhead[Nodes, Rows], nodes: Nodes) -> None:
        self._fetches, self.nodes = fetches, nodes
        self.ready = queued(fetches.device)  # another thread may start the gathering
        self.begun: Later[Fetched[Rows]] | None = None
        self.numbers: dict[str, float] = {}

    def rows(self) -> Rows:
        rows, self.numbers, _ = self._fetches.begun(self).result()
        self.begun = None  # only the caller keeps the rows
        return rows
