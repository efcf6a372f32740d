from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

from clusterctl.engine.task.rendezvous import Member, call_roll, node_group, ranks_by_node
from clusterctl.shared.errors import TaskError
from clusterctl.shared.record.place import Place

SECRET = b"s" * 32


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_every_rank_is_in_exactly_the_group_of_its_node(nodes: list[int]) -> None:
    groups = ranks_by_node([Member(node) for node in nodes])
    assert sorted(rank for ranks in groups for rank in ranks) == list(range(len(nodes)))
    assert [[nodes[rank] for rank in ranks] for ranks in groups] == [
        [node] * nodes.count(node) for node in sorted(set(nodes))
    ]


def test_a_rank_creates_only_the_group_of_its_own_node(monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[list[int]] = []
    monkeypatch.setattr(dist, "new_group", lambda ranks, *_, **__: created.append(ranks))
    node_group([Member(0), Member(1), Member(0), Member(2)], 2)
    assert created == [[0, 2]]


class CountingStore(dist.HashStore):
    """Counts the keys that are read."""

    asked = 0

    def get(self, key: str) -> bytes:
        self.asked += 1
        return bytes(super().get(key))

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.asked += len(keys)
        return [bytes(value) for value in super().multi_get(keys)]


def test_the_roll_call_reads_two_keys_per_rank() -> None:
    ranks, store = 24, CountingStore()

    def called(rank: int) -> list[Member]:
        return call_roll(store, Place(rank, node_rank=rank // 8, world_size=ranks, nodes=3), f"gpu{rank}", SECRET)

    with ThreadPoolExecutor(ranks) as pool:
        rolls = list(pool.map(called, range(ranks)))
    assert rolls == [[Member(rank // 8, f"gpu{rank}") for rank in range(ranks)]] * ranks
    assert store.asked == 2 * ranks


@pytest.mark.parametrize("roll", ["\xff", "{}", "[]", '["{}", "{}"]', '["", 3]', "[" * 10])
def test_a_strangers_roll_is_rejected(roll: str) -> None:
    store = dist.HashStore()
    store.set("roll", roll)
    with pytest.raises(TaskError, match="does not belong to this run answered the roll call"):
        call_roll(store, Place(rank=1, world_size=2), own_secret=SECRET)
