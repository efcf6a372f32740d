from __future__ import annotations

from typing import Any

import pytest
import torch
from support.made_graphs import random_shop

from clusterctl.engine.graph import sampling
from clusterctl.engine.graph.hops import HeteroSample
from clusterctl.engine.graph.recommender import ITEM, OF_USER, TOGETHER, USER, fan_outs
from clusterctl.engine.graph.sampling import HeteroSampler

SEEDS = {USER: torch.tensor([3, 1, 20]), ITEM: torch.tensor([5, 2, 41, 10])}


def flattened(sample: HeteroSample) -> list[torch.Tensor]:
    blocks = [block for hop in sample.hops for block in hop.values()]
    parts = [[block.nodes, block.offsets, block.neighbors, block.columns] for block in blocks]
    return [*sample.nodes.values(), *(tensor for part in parts for tensor in part)]


def test_every_hop_appends_its_new_nodes() -> None:
    graph = random_shop()
    sample = HeteroSampler(graph, fan_outs(4, 2), seed=1).sample(SEEDS, epoch=1, step=0)
    assert [sorted(hop) for hop in sample.hops] == [sorted([OF_USER, TOGETHER]), [TOGETHER]]
    assert torch.equal(sample.nodes[USER], SEEDS[USER])
    assert torch.equal(sample.nodes[ITEM][:4], SEEDS[ITEM])
    assert sample.nodes[ITEM].unique().numel() == sample.nodes[ITEM].numel()
    for hop in sample.hops:
        for (source, _, target), block in hop.items():
            assert torch.equal(block.nodes, sample.nodes[target][: block.nodes.numel()])
            assert torch.equal(sample.nodes[source][block.columns], block.neighbors.to(torch.int64))
    inner, outer = sample.hops
    reached = {*SEEDS[ITEM].tolist(), *inner[OF_USER].neighbors.tolist(), *inner[TOGETHER].neighbors.tolist()}
    assert set(outer[TOGETHER].nodes.tolist()) == reached


def test_a_nodes_typed_sample_does_not_depend_on_its_batch() -> None:
    sampler = HeteroSampler(random_shop(), fan_outs(4, 2), seed=1)
    together = sampler.sample(SEEDS, 1, 0).hops[0][OF_USER]
    for place, user in enumerate(SEEDS[USER]):
        alone = sampler.sample({USER: user[None], ITEM: torch.tensor([7])}, 1, 0).hops[0][OF_USER]
        assert torch.equal(together.neighbors[together.offsets[place] : together.offsets[place + 1]], alone.neighbors)


def test_samples_change_with_seed_epoch_and_step() -> None:
    graph = random_shop(users=10, edges=2000)
    wanted = {USER: torch.arange(1, 10), ITEM: torch.arange(10)}

    def sampled(seed: int, epoch: int, step: int) -> list[int]:
        sample = HeteroSampler(graph, fan_outs(4, 2), seed).sample(wanted, epoch, step)
        return sample.hops[0][OF_USER].neighbors.tolist()  # type: ignore[no-any-return]

    assert sampled(1, 1, 1) == sampled(1, 1, 1)
    assert all(sampled(*other) != sampled(1, 1, 1) for other in ((2, 1, 1), (1, 2, 1), (1, 1, 2)))


def test_with_replacement_every_target_with_sources_gets_the_full_fan_out_in_every_relation() -> None:
    graph = random_shop()
    sample = HeteroSampler(graph, fan_outs(40, 20), seed=1, replace=True).sample(SEEDS, epoch=1, step=0)
    for hop, count in zip(sample.hops, (40, 20), strict=True):
        for edge_type, block in hop.items():
            relation = graph.relation(edge_type)
            degree = relation.degree[block.nodes]
            assert torch.equal(block.offsets.diff(), ((degree > 0) * count).int())
            assert (degree < count).any()
            for place, node in enumerate(block.nodes):
                own = relation.indices[relation.indptr[node] : relation.indptr[node + 1]]
                assert set(block.neighbors[block.offsets[place] : block.offsets[place + 1]].tolist()) <= {*own.tolist()}


@pytest.mark.parametrize(("setting", "value"), [("WORTH_COMPILING", 0), ("uses_loops", lambda: True)])
@pytest.mark.parametrize("replace", [False, True])
def test_the_compiled_loops_match_plain_torch_with_and_without_excluded_edges(
    monkeypatch: pytest.MonkeyPatch, replace: bool, setting: str, value: Any
) -> None:
    """And so does a sampler that has sampled before other loops were compiled."""
    pytest.importorskip("numba")  # optional for users; `make setup` installs it
    sampler, samples, engines = HeteroSampler(random_shop(), fan_outs(4, 2), seed=1, replace=replace), [], set()
    for changed in (("uses_loops", lambda: False), (setting, value)):
        monkeypatch.setattr(sampling, *changed)
        samples.append([sampler.sample(SEEDS, 1, 2, excluded) for excluded in ({}, {OF_USER: torch.arange(0, 300, 3)})])
        engines.add(sampler._engine)
    assert len(engines) == 2
    for plain, fast in zip(*samples, strict=True):
        for ours, theirs in zip(flattened(fast), flattened(plain), strict=True):
            assert torch.equal(ours, theirs)
            assert ours.dtype == theirs.dtype
