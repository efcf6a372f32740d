"""What ranks send each other outside their process groups, from a separate thread: JSON, through rank 0's store.

A process group for that thread would need another connection between every two ranks; through the store, a value costs
one message per rank. Each entry is signed with the attempt's secret, because there is no group in which the ranks have
proven that they know it (docs/security.md).
"""

from __future__ import annotations

import hmac
import itertools
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]

from clusterctl.runs.place import Place
from clusterctl.runs.secret import sign
from clusterctl.task.exchange import tried, value_in
from clusterctl.task.secret import stranger

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._C._distributed_c10d import Store

_PATIENCE = timedelta(minutes=30)  # the default of a process group
_TAG = 64  # hex digits


@dataclass
class StoreExchange:
    """All ranks `begin` a talk at the same points of the program, and take the same steps in it."""

    store: Store = field(default_factory=HashStore)
    place: Place = field(default_factory=Place)
    secret: bytes | None = None
    _talks: itertools.count[int] = field(default_factory=itertools.count)

    @classmethod
    def beside(cls, store: Store, place: Place, secret: bytes | None) -> StoreExchange:
        """Over a second connection to the same store: a request that waits blocks its connection."""
        if isinstance(store, TCPStore):
            words = store.host, store.port, place.world_size
            store = TCPStore(*words, is_master=False, timeout=_PATIENCE, wait_for_workers=False)
        return cls(store, place, secret)

    def begin(self) -> Talk:
        return Talk(self, f"talk/{next(self._talks)}")


@dataclass
class Talk:
    """Related exchanges. Every rank must `end` it, so that none exits before the others have read its entries."""

    _exchange: StoreExchange
    _name: str
    _step: int = 0
    _keys: list[str] = field(default_factory=list)  # rank 0 removes them at the end

    def from_first(self, work: Callable[[], Any]) -> Any:
        """Return what `work` returns on rank 0 (a JSON value); raise its OSError on every rank."""
        key = self._next_key()
        if self._leads:
            self._tell(key, 0, tried(work))
        (content,) = self._hear(key, 1)
        return value_in(content)

    def to_first(self, work: Callable[[], Any]) -> list[Any]:
        """On rank 0, return what `work` returns on each rank; [] elsewhere. Every rank raises any rank's OSError."""
        key = self._next_key()
        self._tell(key, self._exchange.place.rank, tried(work))
        found: list[Any] = []

        def collect() -> None:
            found.extend(map(value_in, self._hear(key, self._exchange.place.world_size)))

        self.from_first(collect)
        return found

    def end(self) -> None:
        """Rank 0, which serves the store, waits until all others are here, and removes all entries."""
        key = self._next_key()
        self._tell(key, self._exchange.place.rank, b"null")
        if self._leads:
            self._hear(key, self._exchange.place.world_size)
            for used in self._keys:
                self._exchange.store.delete_key(used)

    @property
    def _leads(self) -> bool:
        return self._exchange.place.rank == 0

    def _next_key(self) -> str:
        self._step += 1
        return f"{self._name}/{self._step}"

    def _tell(self, key: str, rank: int, content: bytes) -> None:
        own = f"{key}/{rank}"
        self._exchange.store.set(own, (self._tag(own, content) + content).decode())

    def _hear(self, key: str, ranks: int) -> list[bytes]:
        """The entries of the first `ranks` ranks. Raises PermissionError for one that a stranger signed."""
        keys = [f"{key}/{rank}" for rank in range(ranks)]
        if self._leads:
            self._keys += keys
        entries = [bytes(entry) for entry in self._exchange.store.multi_get(keys)]
        for own, entry in zip(keys, entries, strict=True):
            if not hmac.compare_digest(entry[:_TAG], self._tag(own, entry[_TAG:])):
                raise PermissionError(stranger(f"as {own}").message)
        return [entry[_TAG:] for entry in entries]

    def _tag(self, key: str, content: bytes) -> bytes:
        """A run of one rank has no secret, and no other rank to exchange with."""
        return sign(self._exchange.secret or b"", key, content).encode()
