"""Samples of graphs with several types: real edges, trees of their own, and nothing later than a seed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.made_graphs import AUTHOR, CITES, NODES, PAPER, dated_academy, random_academy
from torch import Tensor

from clusterctl.engine.graph import sampling
from clusterctl.engine.graph.blocks import Adjacency
from clusterctl.engine.graph.neighbors import Draw
from clusterctl.engine.graph.pyg import relation as pyg_relation
from clusterctl.engine.graph.storage import LabelledHeteroGraph, compressed
from clusterctl.engine.graph.subgraphs import TypedSampler, TypedSubgraph, typed_neighbourhood, typed_whole


def rows_at(graph: LabelledHeteroGraph, rows: Tensor) -> dict[str, Any]:
    assert graph.seed_times is not None
    return {"seeds": {PAPER: graph.nodes_of(rows)}, "latest": graph.seed_times[rows], "examples": rows}


def edges_of(graph: LabelledHeteroGraph) -> dict[Any, dict[tuple[int, int], list[float]]]:
    """The times of all edges between two nodes; 0 where there is none."""
    found: dict[Any, dict[tuple[int, int], list[float]]] = {}
    for relation in graph.indptr:
        own: dict[tuple[int, int], list[float]] = {}
        times = graph.edge_times.get(relation, torch.zeros(graph.indices[relation].numel()))
        for source, target, time in zip(*graph.relation(relation).edge_index.tolist(), times.tolist(), strict=True):
            own.setdefault((source, target), []).append(time)
        found[relation] = own
    return found


def with_places(graph: LabelledHeteroGraph) -> LabelledHeteroGraph:
    """The graph with the place of each edge as its attribute."""
    return replace(graph, edge_attr={one: torch.arange(len(own)) for one, own in graph.indices.items()})


def check_places(sample: TypedSubgraph) -> None:
    """The attributes of the edges are those of the data."""
    for relation, places in sample.of_edges("edge_attr").items():
        edges = sample.graph.relation(relation).edge_index[:, places]
        sources, targets = sample.edge_index[relation]
        assert torch.equal(edges[0], sample.places[relation[0]][sources])
        assert torch.equal(edges[1], sample.places[relation[2]][targets])


def check_by_depth(sample: TypedSubgraph) -> None:
    """Rows are by depth, and an edge goes from one depth to that before it, or is a self loop, in the same tree."""
    depth = {
        kind: torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        for kind, counts in sample.rows_by_depth.items()
    }
    for relation, (sources, targets) in sample.edge_index.items():
        source, _, target = relation
        is_loop = (sources == targets) if source == target else torch.zeros_like(sources, dtype=torch.bool)
        assert torch.equal(depth[source][sources], depth[target][targets] + 1 - is_loop.long())
        counts = sample.edges_by_depth[relation]
        hops = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        assert torch.equal(depth[target][targets], hops)
        if sample.trees is not None:
            trees = sample.trees.of_rows
            assert torch.equal(trees[source][sources], trees[target][targets])
    for kind, places in sample.places.items():
        tree = sample.trees.of_rows[kind] if sample.trees else torch.zeros_like(places)
        ends = torch.tensor(sample.rows_by_depth[kind]).cumsum(0).tolist()
        for start, stop in pairwise(ends):  # a node has one row for each depth and tree
            assert len(torch.unique(torch.stack([tree, places])[:, start:stop], dim=1).t()) == stop - start


@pytest.mark.parametrize("fan_out", [(-1, -1), (3, 2)])
def test_a_self_loop_connects_a_row_with_itself(fan_out: tuple[int, int]) -> None:
    """PyG's layers that add self loops remove such edges before, and would not know one from a copy."""
    graph = random_academy()
    papers = torch.arange(graph.num_nodes[PAPER])
    edges = torch.cat([graph.relation(CITES).edge_index, papers[::2].expand(2, -1)], 1)
    indptr, indices = compressed(edges, len(papers))
    graph = replace(graph, indptr=graph.indptr | {CITES: indptr}, indices=graph.indices | {CITES: indices})
    sample = TypedSampler(graph, fan_out, 0).sample({PAPER: papers[:10]}, 1, 2)
    check_by_depth(sample)
    (sources, targets), nodes = sample.edge_index[CITES], sample.places[PAPER]
    loops = nodes[sources] == nodes[targets]
    assert loops.any()
    assert not loops.all()
    assert torch.equal(loops, sources == targets)


@given(
    seed=st.integers(0, 1000),
    edges_too=st.booleans(),
    last=st.booleans(),
    replaced=st.booleans(),
    fan_out=st.lists(st.sampled_from([-1, 1, 2, 4]), min_size=1, max_size=3),
)
def test_no_neighbour_is_later_than_its_seed(
    seed: int, edges_too: bool, last: bool, replaced: bool, fan_out: list[int]
) -> None:
    graph = dated_academy(seed, edges_too=edges_too)
    sampler = TypedSampler(graph, fan_out, seed, replace=replaced and not last, last=last)
    sample = sampler.sample(**rows_at(graph, torch.arange(30)), epoch=1, step=2)
    check_by_depth(sample)
    assert sample.trees is not None
    for kind, times in graph.node_times.items():
        later = times[sample.places[kind]] > sample.trees.latest[sample.trees.of_rows[kind]]
        assert not later[sample.seeds.get(kind, 0) :].any()  # the seeds are given
    for relation, known in edges_of(graph).items():
        source, _, target = relation
        sources, targets = sample.edge_index[relation]
        latest = sample.trees.latest[sample.trees.of_rows[target][targets]].tolist()
        ends = zip(sample.places[source][sources].tolist(), sample.places[target][targets].tolist(), strict=True)
        for pair, bound in zip(ends, latest, strict=True):
            assert min(known[pair]) <= bound


@pytest.mark.parametrize("last", [False, True])
def test_as_many_as_the_fan_out_are_taken_of_those_that_a_seed_sees(last: bool) -> None:
    graph = dated_academy(edges_too=True)
    rows, known = torch.arange(30), edges_of(graph)
    sample = TypedSampler(graph, [2], 0, last=last).sample(**rows_at(graph, rows), epoch=0, step=0)
    assert graph.seed_times is not None
    for relation in (CITES, (AUTHOR, "writes", PAPER)):
        sources, targets = sample.edge_index[relation]
        for row, (node, time) in enumerate(zip(graph.nodes_of(rows).tolist(), graph.seed_times.tolist(), strict=True)):
            seen = sorted(
                own for (_, target), times in known[relation].items() for own in times if target == node and own <= time
            )
            found = sample.places[relation[0]][sources[targets == row]].tolist()
            assert len(found) == min(2, len(seen))
            if last and relation in graph.edge_times:
                taken = sorted(max(own for own in known[relation][one, node] if own <= time) for one in found)
                assert taken == seen[-2:]


def test_draws_are_uniform_among_those_that_a_seed_sees() -> None:
    graph = dated_academy()
    rows = torch.arange(30)
    degrees = TypedSampler(graph, [-1], 0).sample(**rows_at(graph, rows), epoch=0, step=0)
    sources, targets = degrees.edge_index[CITES]
    row = int(targets.bincount(minlength=30).argmax())
    everyone = degrees.places[PAPER][sources[targets == row]].unique()
    counts = torch.zeros(NODES[PAPER])
    sampler, tries = TypedSampler(graph, [2], 0), 300
    for epoch in range(tries):
        sample = sampler.sample(**rows_at(graph, rows[row : row + 1]), epoch=epoch, step=0)
        counts[sample.places[PAPER][sample.edge_index[CITES][0]]] += 1
    assert set(counts.nonzero().flatten().tolist()) == set(everyone.tolist())
    expected = 2 * tries / len(everyone)
    assert (counts[everyone] - expected).abs().max() < 5 * expected**0.5


@pytest.mark.parametrize("temporal", [False, True])
def test_the_tree_of_a_seed_is_the_same_alone_and_among_others(temporal: bool) -> None:
    graph = dated_academy(edges_too=True) if temporal else random_academy()
    sampler, rows = TypedSampler(graph, (3, 2), 0), torch.arange(0, 30, 2)

    def around(rows: Tensor) -> TypedSubgraph:
        if temporal:
            return sampler.sample(**rows_at(graph, rows), epoch=1, step=2)
        return sampler.sample({PAPER: rows}, 1, 2)

    together = around(rows)
    check_by_depth(together)
    for number, row in enumerate(rows):
        alone = around(row[None])
        for relation in graph.indptr:
            found = []
            for sample, seed in ((alone, 0), (together, number)):
                sources, targets = sample.edge_index[relation]
                count = sample.edges_by_depth[relation][0]
                own = targets[:count] == seed
                found.append(sample.places[relation[0]][sources[:count][own]].tolist() if relation[2] == PAPER else [])
            assert found[0] == found[1]


@pytest.mark.parametrize("temporal", [False, True])
def test_compiled_loops_sample_the_same(temporal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    graph = dated_academy(edges_too=True) if temporal else random_academy()
    rows = torch.arange(30)
    samples = []
    monkeypatch.setattr(sampling, "uses_loops", lambda: False)
    for worth in (1 << 40, 0):
        monkeypatch.setattr(sampling, "WORTH_COMPILING", worth)
        monkeypatch.setattr(pyg_relation, "WORTH_COMPILING", worth)
        sampler = TypedSampler(graph, (3, 2), 0)
        given = rows_at(graph, rows) if temporal else {"seeds": {PAPER: rows}}
        samples.append(sampler.sample(**given, epoch=1, step=2))
    for relation in graph.indptr:
        pairs = [
            sorted(zip(one.places[relation[0]][own[0]].tolist(), one.places[relation[2]][own[1]].tolist(), strict=True))
            for one in samples
            for own in [one.edge_index[relation]]
        ]
        assert pairs[0] == pairs[1]


@pytest.mark.parametrize("count", [-1, 0, 2, 50])
@pytest.mark.parametrize(("again", "last"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, None])
def test_compiled_loops_see_and_draw_the_same_edges(
    count: int, again: bool, last: bool, dtype: torch.dtype | None
) -> None:
    """Bit for bit; with times after and before all edges, targets without edges, and a repeated id."""
    compiled = pytest.importorskip("clusterctl.engine.graph.pyg.compiled")
    made = torch.Generator().manual_seed(count + 2)
    degree = torch.randint(0, 9, (12,), generator=made)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degree.cumsum(0)])
    edges = Adjacency(indptr, torch.randint(20, (int(degree.sum()),), generator=made, dtype=torch.int32))
    latest = torch.randint(-1, 11, (6,), generator=made).to(dtype or torch.int64)
    times = None
    if dtype:
        times = torch.cat([torch.randint(10, (int(own),), generator=made).sort().values for own in degree]).to(dtype)
    ids = torch.randint(6 * 12, (40,), generator=made)
    ids[7] = ids[3]
    keys = torch.randint(-(2**63), 2**63 - 1, (6,), generator=made)
    draw = Draw(count, -5, again)
    arguments = edges, times, ids, latest, keys, (20, 12), draw
    for one, other in zip(
        pyg_relation.seen(*arguments, last=last),
        compiled.seen_compiled(*arguments, last=last),
        strict=True,
    ):
        assert torch.equal(one, other)
    none = edges, times, ids[:0], latest, keys, (20, 12), draw
    assert [len(one) for one in compiled.seen_compiled(*none, last=last)] == [1, 0]


@pytest.mark.parametrize("worth", [0, 1 << 40], ids=["compiled", "plain"])
@pytest.mark.parametrize("options", [{}, {"replace": True}, {"last": True}], ids=str)
@pytest.mark.parametrize("temporal", [False, True])
def test_attributes_are_those_of_the_sampled_edges_and_change_no_draw(
    temporal: bool, options: dict[str, bool], worth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "uses_loops", lambda: False)
    for module in (sampling, pyg_relation):
        monkeypatch.setattr(module, "WORTH_COMPILING", worth)
    graph, rows = dated_academy(edges_too=True) if temporal else random_academy(), torch.arange(30)
    hidden = {CITES: torch.arange(0, graph.indices[CITES].numel(), 2)}
    given = rows_at(graph, rows) if temporal else {"seeds": {PAPER: rows}, "excluded": hidden}
    for fan_out in ((3, 2), (-1, 1)):
        bare = TypedSampler(graph, fan_out, 0, **options).sample(**given, epoch=1, step=2)
        sample = TypedSampler(with_places(graph), fan_out, 0, **options).sample(**given, epoch=1, step=2)
        check_places(sample)
        check_places(sample.repeated(2))
        assert bare.edges is None
        for relation in graph.indptr:
            assert torch.equal(bare.edge_index[relation], sample.edge_index[relation])
        for kind in NODES:
            assert torch.equal(bare.places[kind], sample.places[kind])


def test_a_neighbourhood_has_all_edges_into_what_is_nearer() -> None:
    graph = with_places(random_academy())
    seeds = torch.tensor([5, 17])
    piece = typed_neighbourhood(graph, {PAPER: seeds}, 2)
    near = {kind: set() for kind in NODES} | {PAPER: set(seeds.tolist())}
    wanted: dict[Any, set[tuple[int, int]]] = {relation: set() for relation in graph.indptr}
    for _ in range(2):
        targets = {kind: set(own) for kind, own in near.items()}
        for relation in graph.indptr:
            for source, target in graph.relation(relation).edge_index.t().tolist():
                if target in targets[relation[2]]:
                    wanted[relation].add((source, target))
                    near[relation[0]].add(source)
    for relation, (sources, targets) in piece.edge_index.items():
        ends = piece.places[relation[0]][sources], piece.places[relation[2]][targets]
        assert set(zip(*(end.tolist() for end in ends), strict=True)) == wanted[relation]
        assert sources.numel() == len(wanted[relation])
    assert {kind: set(places.tolist()) for kind, places in piece.places.items()} == near
    assert torch.equal(piece.places[PAPER][: piece.seeds[PAPER]], seeds)
    check_places(piece)
    check_places(typed_whole(graph))
    assert typed_whole(graph).num_edges == sum(map(len, graph.indices.values()))


def test_excluded_edges_are_not_sampled() -> None:
    graph = random_academy()
    hidden = torch.arange(0, graph.indices[CITES].numel(), 2)
    sampler = TypedSampler(replace(graph), [-1], 0)
    kept = sampler.sample({PAPER: torch.arange(60)}, 0, 0, {CITES: hidden}).edge_index[CITES]
    assert kept.size(1) == graph.indices[CITES].numel() - len(hidden)
