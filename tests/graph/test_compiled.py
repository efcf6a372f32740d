"""The compiled sampler draws the same samples as the plain one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.engine.graph import masks, sampling
from clusterctl.engine.graph.blocks import transposed
from clusterctl.engine.graph.neighbors import max_duplicates, renumbered, sample_labor, sample_neighbors
from clusterctl.engine.graph.sampling import NeighborSampler
from clusterctl.engine.graph.storage import Graph
from clusterctl.engine.graph.subgraphs import SubgraphSampler

pytest.importorskip("numba")  # optional for users; `make setup` installs it
from clusterctl.engine.graph.compiled import (
    Renumbering,
    sample_labor_compiled,
    sample_neighbors_compiled,
    transposed_compiled,
)

MakeGraph = Callable[..., Graph]
NODES = 60


@settings(deadline=None)  # the first example compiles
@given(
    edges=st.sampled_from([0, 30, 500, 3000]),
    nodes=st.lists(st.integers(0, NODES - 1), min_size=1, max_size=40),
    count=st.integers(-1, 30),
    key=st.integers(-(2**63), 2**63 - 1),
    absent=st.sampled_from([None, 1, 2, 7]),  # excludes every n-th edge
    replace=st.booleans(),
)
def test_compiled_neighbours_and_rows_match_plain_torch(
    random_graph: MakeGraph, edges: int, nodes: list[int], count: int, key: int, absent: int | None, replace: bool
) -> None:
    graph = random_graph(nodes=NODES, edges=edges)
    renumbering = Renumbering(NODES)
    targets = torch.tensor(nodes)
    excluded = None if absent is None else torch.arange(0, graph.indices.numel(), absent)
    plain = sample_neighbors(graph, targets, count, key, excluded, replace=replace)
    for _ in range(2):  # the second time, the map of rows has been used before
        fast = sample_neighbors_compiled(graph, targets, count, key, excluded, replace=replace)
        sources, columns = renumbering(targets, fast[1])
        by_source = transposed_compiled(columns, fast[0], len(sources))
        plainly = [*plain, *renumbered(targets, plain[1]), *transposed(columns, plain[0], len(sources))]
        for ours, theirs in zip([*fast, sources, columns, *by_source], plainly, strict=True):
            assert ours.dtype == theirs.dtype
            assert torch.equal(ours, theirs)


@settings(deadline=None)
@given(
    nodes=st.lists(st.integers(0, 2**62), min_size=1, max_size=40),
    channels=st.integers(1, 70),
    p=st.floats(0.0, 1.0),
    key=st.integers(-(2**63), 2**63 - 1),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    threads=st.integers(1, 3),
)
def test_compiled_dropout_has_the_same_bits(
    nodes: list[int], channels: int, p: float, key: int, dtype: torch.dtype, threads: int
) -> None:
    values = torch.randn(len(nodes), channels).to(dtype)
    values[0, 0], values[-1, -1] = torch.nan, -torch.inf
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: threads)  # how many the loop uses
        patch.setattr(masks, "WORTH_COMPILING", 0)
        compiled = masks.keyed_dropout(values, torch.tensor(nodes), p, key)
        patch.setattr(masks, "WORTH_COMPILING", 1 << 62)
        plain = masks.keyed_dropout(values, torch.tensor(nodes), p, key)
    assert compiled.dtype == dtype
    torch.testing.assert_close(compiled, plain, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("setting", "value"), [("WORTH_COMPILING", 0), ("uses_loops", lambda: True)])
@pytest.mark.parametrize("replace", [False, True])
def test_large_graphs_use_the_compiled_loops_with_the_same_blocks(
    random_graph: MakeGraph, monkeypatch: pytest.MonkeyPatch, replace: bool, setting: str, value: Any
) -> None:
    """And so does a sampler that has sampled before other loops were compiled."""
    graph = random_graph(edges=3000)
    sampler = NeighborSampler(graph, [5, 4, 3], seed=3, replace=replace)
    monkeypatch.setattr(sampling, "uses_loops", lambda: False)
    plain = sampler.sample(graph.train, 1, 2)
    assert not isinstance(sampler._renumbered, Renumbering)
    monkeypatch.setattr(sampling, setting, value)
    fast = sampler.sample(graph.train, 1, 2)
    assert isinstance(sampler._renumbered, Renumbering)
    for ours, theirs in zip(fast, plain, strict=True):
        for name in ("nodes", "offsets", "neighbors", "columns"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name))


@pytest.mark.parametrize("count", [-1, 0, 4])
def test_the_places_of_sampled_edges_are_those_of_the_sampled_neighbours(random_graph: MakeGraph, count: int) -> None:
    graph, key = random_graph(edges=3000), 77
    twice = max_duplicates(graph)
    for replace in (False, True):
        offsets, neighbors = sample_neighbors(graph, graph.train, count, key, replace=replace)
        for sample in (sample_neighbors, sample_neighbors_compiled):
            bounds, places = sample(graph, graph.train, count, key, replace=replace, places=True)
            assert torch.equal(bounds, offsets)
            assert torch.equal(graph.indices[places], neighbors)
    offsets, neighbors = sample_labor(graph, graph.train, count, key, twice)
    found = [
        sample(graph, graph.train, count, key, twice, places=True) for sample in (sample_labor, sample_labor_compiled)
    ]
    for bounds, places in found:
        assert places.dtype == torch.int64
        assert torch.equal(bounds, offsets)
        assert torch.equal(graph.indices[places].sort().values, neighbors.sort().values)
    targets = torch.searchsorted(graph.indptr, found[0][1], right=True) - 1
    assert torch.equal(targets, graph.train.repeat_interleave(offsets.diff()))


@pytest.mark.parametrize(("labor", "merged"), [(False, False), (True, False), (False, True)])
def test_large_graphs_give_the_same_trees(
    random_graph: MakeGraph, monkeypatch: pytest.MonkeyPatch, labor: bool, merged: bool
) -> None:
    graph = random_graph(edges=3000)
    monkeypatch.setattr(sampling, "uses_loops", lambda: False)
    plain = SubgraphSampler(graph, [5, 4], 3, labor=labor, places=True, merged=merged).sample(graph.train, 1, 2)
    monkeypatch.setattr(sampling, "WORTH_COMPILING", 0)
    fast = SubgraphSampler(graph, [5, 4], 3, labor=labor, places=True, merged=merged).sample(graph.train, 1, 2)
    for name in ("places", "edge_index", "edges"):
        assert torch.equal(getattr(fast, name), getattr(plain, name))
    assert (fast.rows_by_depth, fast.edges_by_depth) == (plain.rows_by_depth, plain.edges_by_depth)
