"""What each node sees of a shared file system: its own changes at once, those of other nodes late.

As with NFS caches, a node that looks at something for the first time sees its current state, and later changes by other
nodes `least` to `most` seconds late. Each change has its own lateness for each node, so changes may become visible in
another order than they were made.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

REAL = object()  # the current state


class Change(NamedTuple):
    number: int
    time: float
    node: str
    before: Any


class Views:
    """Changes of the last seconds, by key: an entry of a folder, the content of a file, the time of a folder."""

    def __init__(self, seed: int, least: float, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seed, self._least, self._most, self._clock = seed, least, most, clock
        self._changes: dict[Hashable, list[Change]] = {}
        self._looks: dict[tuple[str, Hashable], tuple[float, float]] = {}  # the first and the last of a cache's life
        self._names: dict[int, set[bytes]] = {}  # by folder
        self._count = 0

    def change(self, key: Hashable, node: str, before: Any) -> None:
        """Record that `node` has just changed `key`, which was `before`."""
        now = self._clock()
        kept = [change for change in self._changes.get(key, []) if now - change.time <= self._most]
        self._count += 1
        if isinstance(key, tuple) and key[0] == "entry":
            self._names.setdefault(key[1], set()).add(key[2])
        self._changes[key] = [*kept, Change(self._count, now, node, before)]

    def seen(self, key: Hashable, node: str, look: Hashable = None) -> Any:
        """What `node` sees: REAL, or the state before a change. `look` names what it looks at, if not `key`."""
        known = self._known_since(node, look or key)
        changes = self._changes.get(key, ())
        shown = REAL
        for change in reversed(changes):
            if (
                change.node == node
                or change.time <= known
                or self._clock() >= change.time + self._lateness(change, node)
            ):
                return shown
            shown = change.before
        return shown

    def changed(self, folder: int) -> set[bytes]:
        """The names in a folder that have changed."""
        return self._names.get(folder, set())

    def learn(self, key: Hashable, node: str) -> None:
        """Record that `node` knows the current state of `key`, from a refusal of the server."""
        now = self._clock()
        self._looks[node, key] = now, now

    def _known_since(self, node: str, look: Hashable) -> float:
        now = self._clock()
        first, last = self._looks.get((node, look), (now, now))
        if now - last > self._most:
            first = now
        self._looks[node, look] = first, now
        return first

    def _lateness(self, change: Change, node: str) -> float:
        return random.Random(f"{self._seed} {change.number} {node}").uniform(self._least, self._most)
