from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.engine.graph.blocks import Block
from clusterctl.engine.graph.hashing import below, draws
from clusterctl.engine.graph.neighbors import choose, renumbered, sample_neighbors
from clusterctl.engine.graph.sampling import NeighborSampler
from clusterctl.engine.graph.storage import Graph

MakeGraph = Callable[..., Graph]


@pytest.mark.parametrize(("degree", "count"), [(30, 10), (26, 25), (12, 10), (7, 1)])
def test_every_neighbour_and_every_pair_of_neighbours_is_equally_likely(degree: int, count: int) -> None:
    trials = 20_000
    picks = choose(torch.full((trials,), degree), count, draws(99, torch.arange(trials))).T
    inside = torch.zeros(trials, degree).scatter_(1, picks, 1.0)
    assert (inside.sum(1) == count).all()  # no duplicates, nothing out of bounds
    share = count / degree
    assert (inside.mean(0) - share).abs().max() < 5 * (share * (1 - share) / trials) ** 0.5
    pairs = (inside.T @ inside / trials)[~torch.eye(degree, dtype=torch.bool)]
    expected = share * (count - 1) / (degree - 1)
    assert (pairs - expected).abs().max() < 5 * max(expected * (1 - expected) / trials, 1e-12) ** 0.5


@pytest.mark.parametrize(("degree", "count"), [(30, 10), (7, 7), (3, 10), (1, 4)])
def test_draws_with_replacement_are_uniform_and_independent(degree: int, count: int) -> None:
    trials = 20_000
    picks = choose(torch.full((trials,), degree), count, draws(99, torch.arange(trials)), replace=True).T
    assert picks.shape == (trials, count)
    _assert_uniform(picks, degree)
    for first in range(count):
        for second in range(first):
            _assert_uniform(picks[:, first] * degree + picks[:, second], degree**2)


def _assert_uniform(drawn: torch.Tensor, bound: int) -> None:
    """Pearson's chi-square test with a bound of five standard deviations."""
    seen = torch.bincount(drawn.flatten(), minlength=bound)
    assert seen.numel() == bound
    expected = drawn.numel() / bound
    free = bound - 1
    assert float((seen - expected).square().sum() / expected) <= free + 5 * (2 * free) ** 0.5


@given(st.lists(st.integers(2, 50), min_size=1, max_size=20), st.integers(1, 49), st.integers(-(2**63), 2**63 - 1))
def test_choices_are_distinct_and_below_the_degree(degrees: list[int], count: int, key: int) -> None:
    degree = torch.tensor(degrees).clamp(min=count + 1)
    picks = choose(degree, count, draws(key, torch.arange(degree.numel()))).T
    assert ((picks >= 0) & (picks < degree[:, None])).all()
    assert all(len(set(row)) == count for row in picks.tolist())


def test_a_bounded_draw_never_reaches_its_bound() -> None:
    bits = torch.tensor([-1, 2**63 - 1, -(2**63), 0, -(2**32)])
    for bound in (1, 3, 2**24 + 1, 2**31):
        drawn = below(bits, torch.tensor(bound))
        assert ((drawn >= 0) & (drawn < bound)).all()


@given(data=st.data(), count=st.integers(-1, 12), replace=st.booleans())
def test_a_nodes_sample_does_not_depend_on_its_batch(
    random_graph: MakeGraph, data: st.DataObject, count: int, replace: bool
) -> None:
    graph = random_graph()
    nodes = st.lists(st.integers(0, graph.num_nodes - 1), min_size=1, max_size=20)
    batch = torch.tensor(data.draw(nodes))
    offsets, neighbors = sample_neighbors(graph, batch, count, key=5, replace=replace)
    for position, node in enumerate(batch):
        _, alone = sample_neighbors(graph, node[None], count, key=5, replace=replace)
        assert torch.equal(neighbors[offsets[position] : offsets[position + 1]], alone)


def test_samples_take_all_of_few_neighbours_and_cap_many(random_graph: MakeGraph) -> None:
    graph = random_graph()
    nodes = torch.arange(graph.num_nodes)
    offsets, neighbors = sample_neighbors(graph, nodes, 8, key=1)
    assert torch.equal(offsets.diff(), graph.degree.clamp(max=8).to(torch.int32))
    for node in range(graph.num_nodes):
        whole = graph.indices[graph.indptr[node] : graph.indptr[node + 1]].tolist()
        sampled = neighbors[offsets[node] : offsets[node + 1]].tolist()
        assert Counter(sampled) <= Counter(whole)
    assert int(graph.degree.min()) == 0
    assert int(graph.degree.max()) > 8


@given(count=st.integers(1, 40), key=st.integers(-(2**63), 2**63 - 1), absent=st.sampled_from([None, 1, 2, 7]))
def test_with_replacement_every_node_with_neighbours_gets_the_full_fan_out_of_its_own(
    random_graph: MakeGraph, count: int, key: int, absent: int | None
) -> None:
    graph = random_graph()
    nodes = torch.arange(graph.num_nodes)
    excluded = None if absent is None else torch.arange(0, graph.indices.numel(), absent)
    left = torch.ones(graph.indices.numel(), dtype=torch.bool)
    if excluded is not None:
        left[excluded] = False
    offsets, neighbors = sample_neighbors(graph, nodes, count, key, excluded, replace=True)
    for node in range(graph.num_nodes):
        mine = slice(int(graph.indptr[node]), int(graph.indptr[node + 1]))
        own = graph.indices[mine][left[mine]].tolist()
        sampled = neighbors[offsets[node] : offsets[node + 1]].tolist()
        assert len(sampled) == (count if own else 0)
        assert set(sampled) <= set(own)


@pytest.mark.parametrize("count", [2, pytest.param(25, marks=pytest.mark.long)])
def test_the_mean_over_neighbours_drawn_with_replacement_is_unbiased(random_graph: MakeGraph, count: int) -> None:
    """The bound is five standard deviations of the mean."""
    graph = random_graph()
    trials = 700
    for node in (11, 12, 13):
        own = graph.x[graph.indices[graph.indptr[node] : graph.indptr[node + 1]].long()]
        means = []
        for key in draws(7, torch.arange(trials)).tolist():
            target = torch.tensor([node])
            offsets, neighbors = sample_neighbors(graph, target, count, key, replace=True)
            means.append(Block(graph, target, offsets, neighbors, neighbors).mean(graph.x))
        error = torch.cat(means).mean(0) - own.mean(0)
        assert (error.abs() <= 5 * (own.var(0, correction=0) / (count * trials)).sqrt()).all()


@pytest.mark.parametrize("replace", [False, True])
def test_minus_one_takes_all_neighbours_and_zero_takes_none(random_graph: MakeGraph, replace: bool) -> None:
    graph = random_graph()
    nodes = torch.arange(graph.num_nodes)
    assert torch.equal(sample_neighbors(graph, nodes, -1, key=1, replace=replace)[1], graph.indices)
    assert sample_neighbors(graph, nodes, 0, key=1, replace=replace)[1].numel() == 0


def test_every_frontier_node_is_sampled_at_every_hop_and_targets_come_first(random_graph: MakeGraph) -> None:
    graph = random_graph()
    seeds = torch.tensor([5, 3, 10, 41])
    outer, inner = NeighborSampler(graph, [3, 2], seed=1).sample(seeds, epoch=2, step=3)
    assert torch.equal(inner.nodes, seeds)
    assert torch.equal(outer.nodes[:4], seeds)
    assert torch.equal(outer.nodes[inner.columns], inner.neighbors.to(torch.int64))
    assert set(outer.nodes.tolist()) == {*seeds.tolist(), *inner.neighbors.tolist()}
    assert torch.equal(outer.offsets.diff(), graph.degree[outer.nodes].clamp(max=2).to(torch.int32))
    assert torch.equal(outer.columns, outer.neighbors)


def test_samples_change_with_seed_epoch_step_and_hop(random_graph: MakeGraph) -> None:
    graph = random_graph(nodes=60, edges=3000)
    seeds = graph.train[:8]

    def sampled(seed: int, epoch: int, step: int) -> list[list[int]]:
        return [block.neighbors.tolist() for block in NeighborSampler(graph, [5, 5], seed).sample(seeds, epoch, step)]

    assert sampled(1, 1, 1) == sampled(1, 1, 1)
    others = [sampled(2, 1, 1), sampled(1, 2, 1), sampled(1, 1, 2), sampled(1, 2, 0)]
    assert all(other != sampled(1, 1, 1) for other in others)
    outer, inner = sampled(1, 1, 1)
    assert outer[: len(inner)] != inner


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=12),
    st.lists(st.integers(0, 30), max_size=40),
)
def test_renumbering_lists_every_node_once_even_if_a_target_repeats(targets: list[int], others: list[int]) -> None:
    nodes, columns = renumbered(torch.tensor(targets), torch.tensor(others, dtype=torch.int32))
    assert nodes[: len(targets)].tolist() == targets
    added = nodes[len(targets) :].tolist()
    assert sorted(added) == sorted(set(others) - set(targets))
    assert nodes[columns].tolist() == others
    assert all(
        targets.index(other) == int(column) for other, column in zip(others, columns, strict=True) if other in targets
    )
