"""LABOR: exact fan-outs, equally likely neighbours, identical implementations, and fewer rows to read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clusterctl.engine.graph import neighbors, sampling
from clusterctl.engine.graph.blocks import Adjacency
from clusterctl.engine.graph.hashing import draws
from clusterctl.engine.graph.neighbors import choose_labor, max_duplicates, sample_labor
from clusterctl.engine.graph.sampling import NeighborSampler, StaticSampler
from clusterctl.engine.graph.storage import Graph, compressed

MakeGraph = Callable[..., Graph]
Sample = Callable[..., tuple[Tensor, Tensor]]


def one_list(sources: Tensor) -> Adjacency:
    """A graph with edges only into node 0."""
    return Adjacency(torch.tensor([0, sources.numel()]), sources.to(torch.int32))


def implementations() -> list[Sample]:
    pytest.importorskip("numba")  # optional for users; `make setup` installs it
    from clusterctl.engine.graph.compiled import sample_labor_compiled

    return [sample_labor, sample_labor_compiled]


def assert_uniform(drawn: Tensor, expected: Tensor) -> None:
    """Pearson's chi-square test against `expected` counts, with a bound of five standard deviations."""
    free = expected.numel() - 1
    assert float(((drawn - expected).square() / expected).sum()) <= free + 5 * (2 * free) ** 0.5


@pytest.mark.parametrize(
    ("degree", "count"),
    [(30, 10), (12, 1), *(pytest.param(*one, marks=pytest.mark.long) for one in [(26, 25), (200, 5), (41, 5)])],
)
def test_every_neighbour_is_equally_likely_with_and_without_a_window(degree: int, count: int) -> None:
    graph = one_list(torch.randperm(1000, generator=torch.Generator().manual_seed(0))[:degree])
    trials = 1500
    seen = torch.zeros(1000, dtype=torch.int64)
    for key in draws(3, torch.arange(trials)).tolist():
        _, neighbors = sample_labor(graph, torch.tensor([0]), count, key, 1)
        assert len(set(neighbors.tolist())) == count
        seen += torch.bincount(neighbors, minlength=1000)
    drawn = seen[graph.indices.long()]
    assert int(drawn.sum()) == trials * count
    assert_uniform(drawn, torch.full((degree,), trials * count / degree))


@pytest.mark.long
def test_without_a_window_every_pair_of_neighbours_is_equally_likely() -> None:
    graph, count, degree = one_list(torch.arange(9)), 3, 9
    trials = 4000
    inside = torch.zeros(trials, degree)
    for trial, key in enumerate(draws(4, torch.arange(trials)).tolist()):
        inside[trial, sample_labor(graph, torch.tensor([0]), count, key, 1)[1].long()] = 1
    pairs = (inside.T @ inside)[torch.triu(torch.ones(degree, degree), 1).bool()]
    assert_uniform(pairs, torch.full_like(pairs, trials * count * (count - 1) / (degree * (degree - 1))))


@pytest.mark.long
def test_each_duplicate_of_an_edge_is_equally_likely() -> None:
    """Each of a, a, a, b, c is equally likely at any place of the window; one number per source would bias them."""
    for sources in (torch.tensor([7, 7, 7, 2, 5]), torch.arange(60).repeat_interleave(2)):
        graph = one_list(sources)
        trials = 6000
        count = 1 if sources.numel() == 5 else 3
        duplicates = max_duplicates(graph)
        places = torch.stack(
            [
                choose_labor(graph, torch.tensor([0]), torch.tensor([sources.numel()]), count, key, duplicates)[:, 0]
                for key in draws(5, torch.arange(trials)).tolist()
            ]
        )
        seen = torch.bincount(places.flatten(), minlength=sources.numel())
        assert_uniform(seen, torch.full((sources.numel(),), trials * count / sources.numel()))


@pytest.mark.parametrize("at_once", [3, 1 << 24])
def test_duplicates_are_counted_within_lists(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(neighbors, "_EDGES_AT_ONCE", at_once)

    def most(*lists: list[int]) -> int:
        indptr = torch.tensor([0, *[len(one) for one in lists]]).cumsum(0)
        return max_duplicates(
            Adjacency(indptr, torch.tensor([node for one in lists for node in one], dtype=torch.int32))
        )

    assert most([], []) == 1
    assert most([1], [1], [], [1, 2]) == 1
    assert most([1, 2, 2, 3], [3, 3], [4, 4, 4]) == 3
    assert most([2, 2, 2, 2], [2, 2], []) == 4


@pytest.mark.long
@settings(deadline=None)  # the first example compiles
@given(
    edges=st.sampled_from([0, 30, 500, 3000]),
    nodes=st.lists(st.integers(0, 59), min_size=1, max_size=40),
    count=st.integers(-1, 30),
    key=st.integers(-(2**63), 2**63 - 1),
    repeated=st.sampled_from([1, 2, 3]),
)
def test_numba_and_torch_draw_the_same_samples(
    random_graph: MakeGraph, edges: int, nodes: list[int], count: int, key: int, repeated: int
) -> None:
    graph = random_graph(nodes=60, edges=edges)
    multigraph = Adjacency(graph.indptr * repeated, graph.indices.repeat_interleave(repeated))
    duplicates = max_duplicates(multigraph)
    assert duplicates == (repeated if edges else 1)
    plain, fast = (sample(multigraph, torch.tensor(nodes), count, key, duplicates) for sample in implementations())
    for ours, theirs in zip(fast, plain, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


@settings(deadline=None)
@given(degree=st.integers(5, 400), count=st.integers(1, 12), key=st.integers(-(2**63), 2**63 - 1))
def test_numba_and_torch_agree_in_windows_that_wrap_around(degree: int, count: int, key: int) -> None:
    graph = one_list(torch.arange(degree) * 7)
    plain, fast = (sample(graph, torch.tensor([0]), count, key, 1) for sample in implementations())
    assert torch.equal(plain[1], fast[1])
    assert len(set(plain[1].tolist())) == min(count, degree)


@given(data=st.data(), count=st.integers(-1, 12))
def test_a_nodes_sample_does_not_depend_on_its_batch(random_graph: MakeGraph, data: st.DataObject, count: int) -> None:
    graph = random_graph()
    batch = torch.tensor(data.draw(st.lists(st.integers(0, graph.num_nodes - 1), min_size=1, max_size=20)))
    offsets, neighbors = sample_labor(graph, batch, count, 5, 1)
    for position, node in enumerate(batch):
        _, alone = sample_labor(graph, node[None], count, 5, 1)
        assert torch.equal(neighbors[offsets[position] : offsets[position + 1]], alone)


def test_samples_take_all_of_few_neighbours_and_cap_many(random_graph: MakeGraph) -> None:
    graph = random_graph()
    offsets, neighbors = sample_labor(graph, torch.arange(graph.num_nodes), 8, 1, 1)
    assert torch.equal(offsets.diff(), graph.degree.clamp(max=8).to(torch.int32))
    for node in range(graph.num_nodes):
        whole = graph.indices[graph.indptr[node] : graph.indptr[node + 1]].tolist()
        assert Counter(neighbors[offsets[node] : offsets[node + 1]].tolist()) <= Counter(whole)


def test_sampling_in_small_chunks_gives_the_same_result(
    random_graph: MakeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = random_graph(edges=3000)
    whole = sample_labor(graph, torch.arange(60), 3, 1, 1)
    monkeypatch.setattr(neighbors, "_CANDIDATES_AT_ONCE", 100)
    assert torch.equal(sample_labor(graph, torch.arange(60), 3, 1, 1)[1], whole[1])


@pytest.mark.parametrize("fan_out", [(4, 3), (40, 2), (3, 0), (2, 2, 2)])
def test_static_blocks_have_the_same_neighbours(random_graph: MakeGraph, fan_out: tuple[int, ...]) -> None:
    graph, seeds = random_graph(edges=2000), torch.arange(5, 25)
    ragged, static = (
        kind(graph, fan_out, 7, labor=True).sample(seeds, 1, 2) for kind in (NeighborSampler, StaticSampler)
    )
    for known, block in zip(static, ragged, strict=True):
        width = known.neighbors.numel() // max(1, known.nodes.numel())
        expected = {int(node): neighbors for node, neighbors in zip(block.nodes, _neighbor_lists(block), strict=True)}
        for place, node in enumerate(known.nodes.tolist()):
            first = place * width
            assert known.neighbors[first : first + int(known.sampled[place])].tolist() == expected[node]


def _neighbor_lists(block: sampling.Block) -> list[list[int]]:
    return [part.tolist() for part in torch.split(block.neighbors, block.sampled.tolist())]


def test_large_graphs_use_the_compiled_loop_with_the_same_blocks(
    random_graph: MakeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    graph = random_graph(edges=3000)
    monkeypatch.setattr(sampling, "uses_loops", lambda: False)
    plain = NeighborSampler(graph, [5, 4, 3], seed=3, labor=True).sample(graph.train, 1, 2)
    monkeypatch.setattr(sampling, "WORTH_COMPILING", 0)
    fast = NeighborSampler(graph, [5, 4, 3], seed=3, labor=True).sample(graph.train, 1, 2)
    for ours, theirs in zip(fast, plain, strict=True):
        for name in ("nodes", "offsets", "neighbors", "columns"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name))


def test_a_batch_reads_fewer_distinct_rows_than_with_uniform_sampling() -> None:
    nodes, degree = 20_000, 200
    generator = torch.Generator().manual_seed(0)
    edges = torch.stack(
        [torch.randint(nodes, (nodes * degree,), generator=generator), torch.arange(nodes).repeat_interleave(degree)]
    )
    indptr, indices = compressed(edges, nodes, shuffled=True)
    empty = torch.empty(0, dtype=torch.int64)
    graph = Graph(indptr, indices, torch.empty(nodes, 0), empty, empty, empty, empty, 1)

    def rows(labor: bool) -> int:
        outer, _ = NeighborSampler(graph, [10, 10], seed=1, labor=labor).sample(torch.arange(200), 0, 0)
        return torch.unique(outer.neighbors).numel()

    assert rows(labor=True) * 2.5 < rows(labor=False)
