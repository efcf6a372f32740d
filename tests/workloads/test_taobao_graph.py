"""The published example leaks test data into training in three ways; each has its test here."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.engine.data import taobao
from clusterctl.engine.data.taobao import TaobaoEvents, co_occurrence, interactions
from clusterctl.engine.graph.links import ends
from clusterctl.engine.graph.recommender import OF_USER, TOGETHER
from clusterctl.engine.graph.storage import compressed
from clusterctl.engine.training.objectives.link import Interactions

USERS, ITEMS = 60, 80
Pair = tuple[int, int]


@pytest.fixture(scope="module")
def events() -> TaobaoEvents:
    """Events in which many pairs repeat, as in the real data."""
    random = np.random.default_rng(0)
    pairs = random.integers((USERS, ITEMS), size=(900, 2))
    pairs = np.sort(np.concatenate([pairs, pairs[:300]]).view([("user", int), ("item", int)]), axis=0)
    return TaobaoEvents(pairs["user"].ravel(), pairs["item"].ravel(), USERS, ITEMS)


@pytest.fixture(scope="module")
def data(events: TaobaoEvents) -> Interactions:
    return interactions(events, together=3, best_auc=0.9)


def training(data: Interactions) -> list[Pair]:
    items, users = ends(data.relation(OF_USER), torch.arange(data.indices[OF_USER].numel()))
    return list(zip(users.tolist(), items.tolist(), strict=True))


def pairs_of(part: torch.Tensor) -> list[Pair]:
    return list(zip(*part.tolist(), strict=True))


def test_all_events_of_a_pair_are_in_the_same_split(events: TaobaoEvents, data: Interactions) -> None:
    splits = [training(data), pairs_of(data.val), pairs_of(data.test)]
    assert sum(map(Counter, splits), Counter()) == Counter(zip(events.users.tolist(), events.items.tolist()))  # noqa: B905
    assert all(not set(one) & set(other) for one, other in combinations(splits, 2))
    shares = [len(split) / len(events.users) for split in splits]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.05)


def test_only_training_events_decide_which_items_go_together(data: Interactions) -> None:
    taken = np.zeros((USERS, ITEMS), dtype=int)
    for user, item in training(data):
        taken[user, item] += 1
    counts = taken.T @ taken
    np.fill_diagonal(counts, 0)
    sources, targets = ends(data.relation(TOGETHER), torch.arange(data.indices[TOGETHER].numel()))
    assert sorted(zip(targets.tolist(), sources.tolist(), strict=True)) == list(
        zip(*np.nonzero(counts >= 3), strict=True)
    )


def test_test_events_change_no_edge_that_carries_messages(events: TaobaoEvents, data: Interactions) -> None:
    known = {pair: place for place, pair in enumerate(training(data))}
    kept = [(user, item) in known for user, item in zip(events.users.tolist(), events.items.tolist(), strict=True)]
    without = interactions(TaobaoEvents(events.users[kept], events.items[kept], USERS, ITEMS), 3, 0.9)
    for edge_type in data.indptr:
        assert torch.equal(data.indices[edge_type], without.indices[edge_type])
        assert torch.equal(data.indptr[edge_type], without.indptr[edge_type])


def test_negatives_are_in_no_split(events: TaobaoEvents, data: Interactions) -> None:
    known = set(zip(events.users.tolist(), events.items.tolist(), strict=True))
    for split in ("val", "test"):
        negatives = pairs_of(getattr(data, f"{split}_negatives"))
        assert len(negatives) == getattr(data, split).size(1)
        assert not known & set(negatives)
    assert pairs_of(data.val_negatives)[:10] != pairs_of(data.test_negatives)[:10]


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 8)), max_size=60), st.sampled_from([1, 5, 10**6]))
def test_co_occurrence_is_independent_of_chunks_and_changes_no_argument(pairs: list[Pair], at_once: int) -> None:
    edges = torch.tensor([(item, user) for user, item in pairs], dtype=torch.int64).view(-1, 2).T
    indptr, indices = compressed(edges, 7, 9)
    before = indices.clone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(taobao, "_PRODUCTS_AT_ONCE", at_once)
        found = co_occurrence(indptr, indices, 9, 2)
    assert torch.equal(indices, before)
    taken = np.zeros((7, 9), dtype=int)
    for user, item in pairs:
        taken[user, item] += 1
    counts = taken.T @ taken
    np.fill_diagonal(counts, 0)
    rows, columns = np.nonzero(counts >= 2)
    expected = compressed(torch.from_numpy(np.stack([columns, rows])), 9, 9)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
        assert ours.dtype == theirs.dtype
