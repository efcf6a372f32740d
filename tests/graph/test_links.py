from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.made_graphs import random_shop

from clusterctl.engine.graph.blocks import Adjacency
from clusterctl.engine.graph.links import ends, has_edge, negatives, with_duplicates
from clusterctl.engine.graph.neighbors import sample_neighbors
from clusterctl.engine.graph.recommender import OF_USER
from clusterctl.engine.graph.storage import Graph, compressed
from clusterctl.shared.errors import TaskError

MakeGraph = Callable[..., Graph]
USERS, ITEMS = 40, 60


def relation() -> Adjacency:
    return random_shop(USERS, ITEMS).relation(OF_USER)


def pairs_of(graph: Adjacency) -> list[tuple[int, int]]:
    sources, targets = ends(graph, torch.arange(graph.indices.numel()))
    return list(zip(sources.tolist(), targets.tolist(), strict=True))


def test_has_edge_finds_exactly_the_edges() -> None:
    graph, known = relation(), set(pairs_of(relation()))
    everything = torch.cartesian_prod(torch.arange(ITEMS), torch.arange(USERS))
    found = has_edge(graph, everything[:, 0], everything[:, 1])
    assert {tuple(pair) for pair in everything[found].tolist()} == known
    empty = Adjacency(*compressed(torch.empty(2, 0, dtype=torch.int64), USERS, ITEMS))
    assert not has_edge(empty, torch.tensor([0]), torch.tensor([0])).any()


@given(st.lists(st.integers(0, 300), min_size=1, max_size=20))
def test_with_duplicates_adds_all_duplicates_once_in_ascending_order(edges: list[int]) -> None:
    graph = relation()
    pairs = pairs_of(graph)
    wanted = {pairs[edge] for edge in edges}
    assert with_duplicates(graph, torch.tensor(edges)).tolist() == [
        place for place, pair in enumerate(pairs) if pair in wanted
    ]


@given(
    st.sets(st.integers(0, 300), max_size=60),
    st.integers(-1, 6),
    st.integers(-(2**63), 2**63 - 1),
)
def test_excluding_edges_matches_sampling_a_graph_without_them(gone: set[int], count: int, key: int) -> None:
    graph = relation()
    kept = torch.ones(graph.indices.numel(), dtype=torch.bool)
    kept[sorted(gone)] = False
    sources, targets = ends(graph, torch.arange(kept.numel()))
    without = Adjacency(*compressed(torch.stack([sources[kept], targets[kept]]), USERS, ITEMS))
    nodes = torch.arange(USERS)
    excluded = torch.tensor(sorted(gone), dtype=torch.int64)
    for ours, theirs in zip(
        sample_neighbors(graph, nodes, count, key, excluded), sample_neighbors(without, nodes, count, key), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_negatives_are_never_edges_even_if_most_pairs_are() -> None:
    everything = torch.cartesian_prod(torch.arange(8), torch.arange(9)).T
    graph = Adjacency(*compressed(everything[:, everything.sum(0) % 8 != 0], 9, 8))
    sources, targets = negatives(graph, 8, torch.arange(3000), seed=1, epoch=2)
    assert not has_edge(graph, sources, targets).any()
    absent = everything[:, everything.sum(0) % 8 == 0]
    counts = torch.bincount(targets * 8 + sources, minlength=72)[absent[1] * 8 + absent[0]]
    expected = 3000 / absent.size(1)
    assert counts.sum() == 3000
    assert (counts - expected).abs().max() < 5 * expected**0.5  # uniform


def test_distinct_negatives_are_uniform_among_pairs_of_different_nodes() -> None:
    graph = Adjacency(*compressed(torch.tensor([[0, 1, 5], [1, 0, 2]]), 6, 6))
    drawn = torch.stack(negatives(graph, 6, torch.arange(6000), 1, 2, each=2, distinct=True))
    counts = torch.bincount(drawn[1] * 6 + drawn[0], minlength=36).view(6, 6)
    assert not has_edge(graph, *drawn).any()
    assert not counts.diagonal().any()
    assert (counts > 0).sum() == 36 - 6 - 3
    expected = 12000 / 27
    assert (counts[counts > 0] - expected).abs().max() < 5 * expected**0.5
    others = torch.stack(negatives(graph, 6, torch.arange(6000), 1, 2, each=2))
    same = others[0] != others[1]
    assert torch.equal(others[:, same], drawn[:, same])


def test_a_negative_depends_only_on_seed_epoch_and_example() -> None:
    graph, examples = relation(), torch.arange(50)
    together = torch.stack(negatives(graph, ITEMS, examples, 1, 2))
    for order in (examples.flip(0), torch.tensor([7]), examples[::3]):
        assert torch.equal(torch.stack(negatives(graph, ITEMS, order, 1, 2)), together[:, order])
    assert not torch.equal(torch.stack(negatives(graph, ITEMS, examples, 2, 2)), together)
    assert not torch.equal(torch.stack(negatives(graph, ITEMS, examples, 1, 3)), together)


def test_data_with_every_pair_as_an_edge_is_an_error() -> None:
    complete = Adjacency(*compressed(torch.cartesian_prod(torch.arange(3), torch.arange(4)).T, 4, 3))
    with pytest.raises(TaskError, match="no pair without an edge"):
        negatives(complete, 3, torch.arange(5), seed=0, epoch=0)
