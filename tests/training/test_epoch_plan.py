from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.engine.training.epoch_plan import Batch, EpochPlan


def epoch_of(seeds: int, global_size: int, world_size: int, epoch: int = 1, seed: int = 0) -> list[list[Batch]]:
    """The batches of every rank. Seed `i` is node `i + 1000`."""
    nodes = torch.arange(1000, 1000 + seeds)
    return [list(EpochPlan(nodes, global_size, seed, rank, world_size).batches(epoch)) for rank in range(world_size)]


def trained(batches: list[Batch]) -> list[int]:
    return [int(node) for batch in batches for node in batch.seeds[batch.weights.bool()]]


@given(st.integers(1, 60), st.integers(1, 90), st.integers(1, 9))
def test_every_seed_is_trained_on_once_in_equal_steps_and_shares(seeds: int, size: int, world_size: int) -> None:
    ranks = epoch_of(seeds, size, world_size)
    assert sorted(node for batches in ranks for node in trained(batches)) == list(range(1000, 1000 + seeds))
    assert len({len(batches) for batches in ranks}) == 1
    share = -(-min(size, seeds) // world_size)
    assert {batch.seeds.numel() for batches in ranks for batch in batches} == {share}
    for step in zip(*ranks, strict=True):
        assert {batch.total for batch in step} == {sum(int(batch.weights.sum()) for batch in step)}
    for full in list(zip(*ranks, strict=True))[:-1]:
        assert {int(batch.weights.sum()) for batch in full} <= {share - 1, share}


@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 40))
def test_the_global_batches_do_not_depend_on_the_number_of_ranks(seeds: int, size: int, world_size: int) -> None:
    """Even if the ranks do not divide the batch, or outnumber its seeds."""
    together = [trained([batch]) for batch in epoch_of(seeds, size, 1)[0]]
    split = epoch_of(seeds, size, world_size)
    assert [[node for batch in step for node in trained([batch])] for step in zip(*split, strict=True)] == together


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 9), st.integers(1, 9), st.integers(0, 5))
def test_resuming_mid_epoch_on_another_number_of_ranks_keeps_the_batches(
    seeds: int, size: int, before: int, after: int, steps: int
) -> None:
    nodes = torch.arange(seeds)
    whole = [batch.everyone.tolist() for batch in EpochPlan(nodes, size, 0, 0, before).batches(1)]
    steps = min(steps, len(whole))
    done = sum(map(len, whole[:steps]))
    ranks = [list(EpochPlan(nodes, size, 0, rank, after).batches(1, done)) for rank in range(after)]
    again = [[node for batch in step for node in trained([batch])] for step in zip(*ranks, strict=True)]
    assert again == whole[steps:]
    assert [batch.step for batch in ranks[0]] == list(range(steps, len(whole)))


def test_each_epoch_and_seed_has_its_own_reproducible_order() -> None:
    orders = [trained(epoch_of(50, 10, 1, epoch, seed)[0]) for epoch, seed in ((1, 0), (2, 0), (1, 1), (1, 0))]
    assert orders[0] == orders[3]
    assert orders[0] != orders[1] != orders[2] != orders[0]
