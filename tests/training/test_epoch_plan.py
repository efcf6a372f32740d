from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.training.epoch_plan import Batch, EpochPlan


def epoch_of(seeds: int, batch_size: int, world_size: int, epoch: int = 1, seed: int = 0) -> list[list[Batch]]:
    """The batches of every rank. Seed `i` is node `i + 1000`."""
    nodes = torch.arange(1000, 1000 + seeds)
    return [list(EpochPlan(nodes, batch_size, seed, rank, world_size).batches(epoch)) for rank in range(world_size)]


def trained(batches: list[Batch]) -> list[int]:
    return [int(node) for batch in batches for node in batch.seeds[batch.weights.bool()]]


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 9))
def test_every_seed_is_trained_once_in_equal_steps_of_full_size(seeds: int, batch_size: int, world_size: int) -> None:
    ranks = epoch_of(seeds, batch_size, world_size)
    assert sorted(node for batches in ranks for node in trained(batches)) == list(range(1000, 1000 + seeds))
    assert len({len(batches) for batches in ranks}) == 1
    assert all(batch.seeds.numel() == batch_size for batches in ranks for batch in batches)
    for step in zip(*ranks, strict=True):
        assert {batch.total for batch in step} == {sum(int(batch.weights.sum()) for batch in step)}


@given(st.integers(1, 60), st.integers(1, 5), st.sampled_from([(1, 4), (2, 2), (4, 1)]))
def test_the_global_batches_do_not_depend_on_the_number_of_ranks(
    seeds: int, batch_size: int, shape: tuple[int, int]
) -> None:
    world_size, times = shape
    together = [trained([batch]) for batch in epoch_of(seeds, 4 * batch_size, 1)[0]]
    split = epoch_of(seeds, times * batch_size, world_size)
    assert [[node for batch in step for node in trained([batch])] for step in zip(*split, strict=True)] == together


def test_each_epoch_and_seed_shuffles_anew_and_again_alike() -> None:
    orders = [trained(epoch_of(50, 10, 1, epoch, seed)[0]) for epoch, seed in ((1, 0), (2, 0), (1, 1), (1, 0))]
    assert orders[0] == orders[3]
    assert orders[0] != orders[1] != orders[2] != orders[0]
