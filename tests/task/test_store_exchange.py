"""Exchanges of ranks through the store."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.distributed import HashStore

from clusterctl.engine.task.task import StoreExchange, Talk, tried
from clusterctl.shared.record.place import Place

RANKS, SECRET = 8, b"s" * 32


def on_all(work: Callable[[Talk], Any], store: HashStore, talks: int = 1) -> list[Any]:
    """What `work` returns or raises in the last of `talks` talks, on every rank: one thread per rank."""

    def run(rank: int) -> Any:
        exchange = StoreExchange(store, Place(rank, world_size=RANKS), SECRET)
        for _ in range(talks):
            try:
                found = work(exchange.begin())
            except OSError as error:
                found = str(error)
        return found

    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(run, range(RANKS)))


def rank_of(talk: Talk) -> int:
    return talk._exchange.place.rank


def test_values_are_exchanged_and_removed_from_the_store() -> None:
    def work(talk: Talk) -> Any:
        first = talk.from_first(lambda: [None, "é", rank_of(talk)])
        gathered = talk.to_first(lambda: {"rank": rank_of(talk)})
        talk.end()
        return first, gathered

    store = HashStore()
    found = on_all(work, store, talks=3)
    from_all = [{"rank": rank} for rank in range(RANKS)]
    assert found == [([None, "é", 0], [] if rank else from_all) for rank in range(RANKS)]
    assert store.num_keys() == 0


@pytest.mark.parametrize("failing", [0, 5])
def test_a_failure_on_one_rank_fails_all_but_not_the_next_talk(failing: int) -> None:
    def work(talk: Talk) -> Any:
        def fail() -> None:
            if rank_of(talk) == failing and talk._name == "talk/0":
                raise FileNotFoundError(2, "No such file or directory", "/gone")

        talk.to_first(fail)
        talk.end()
        return "fine"

    assert on_all(work, HashStore()) == ["/gone: No such file or directory"] * RANKS
    assert on_all(work, HashStore(), talks=2) == ["fine"] * RANKS


def test_every_rank_rejects_an_entry_signed_with_a_wrong_secret() -> None:
    def work(talk: Talk) -> Any:
        if rank_of(talk) == 5:
            talk._exchange.secret = b"t" * 32
            talk._tell(talk._next_key(), 5, tried(lambda: "mine"))
            return "a stranger"
        return talk.to_first(lambda: rank_of(talk))

    found = on_all(work, HashStore())
    assert found.pop(5) == "a stranger"
    assert all("does not belong to this run" in error for error in found)


def test_a_single_rank_needs_no_exchange() -> None:
    talk = StoreExchange().begin()
    assert (talk.from_first(lambda: 1), talk.to_first(lambda: 2)) == (1, [2])
    talk.end()
