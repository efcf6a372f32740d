"""The compiled loops for PyG's loaders draw the same samples as those in plain torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.made_graphs import BOUGHT, one_type, shop
from torch import Tensor

from clusterctl.engine.graph.pyg import relation
from clusterctl.engine.graph.pyg.relation import Numbering, first
from clusterctl.pyg import LinkNeighborLoader, NeighborLoader

pytest.importorskip("numba")  # optional for users; `make setup` installs it
from clusterctl.engine.graph.pyg.compiled import CompiledNumbering, first_compiled

OPTIONS: list[dict[str, Any]] = [
    {},
    {"replace": True},
    {"disjoint": True},
    {"subgraph_type": "induced"},
    {"subgraph_type": "bidirectional"},
    {"time_attr": "time", "temporal_strategy": "uniform"},
    {"time_attr": "time", "temporal_strategy": "last"},
    {"time_attr": "edge_time"},
    {"weight_attr": "weight"},
    {"weight_attr": "weight", "replace": True, "disjoint": True},
]


def batches(monkeypatch: pytest.MonkeyPatch, compiled: bool, loader: Any, *arguments: Any, **options: Any) -> Any:
    monkeypatch.setattr(relation, "WORTH_COMPILING", 0 if compiled else 10**9)
    torch.manual_seed(4)
    made = loader(*arguments, **options)
    sampler = made.node_sampler if isinstance(made, NeighborLoader) else made.link_sampler
    assert (sampler._graph.by.numbering is CompiledNumbering) == compiled
    return [batch.to_dict() for batch in made]


def assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_same(ours[key], theirs[key])
    elif isinstance(ours, Tensor):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
    else:
        assert ours == theirs


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_compiled_node_batches_match_plain_torch(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    seeds = torch.tensor([3, 17, 3, 8, 41])
    if "time_attr" in options:
        options = {**options, "input_time": torch.tensor([5, 10, 15, 19, 0])}
    given = (NeighborLoader, one_type(), [4, -1, 3], seeds)
    plain, compiled = (batches(monkeypatch, how, *given, batch_size=3, **options) for how in (False, True))
    for ours, theirs in zip(compiled, plain, strict=True):
        assert_same(ours, theirs)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_compiled_typed_edge_batches_match_plain_torch(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    graph = shop()
    if "time_attr" in options:
        options = {**options, "edge_label_time": graph[BOUGHT].edge_time}
    given = (LinkNeighborLoader, graph, [4, -1], (BOUGHT, None))
    plain, compiled = (
        batches(monkeypatch, how, *given, batch_size=150, neg_sampling="binary", **options) for how in (False, True)
    )
    for ours, theirs in zip(compiled, plain, strict=True):
        assert_same(ours, theirs)


@settings(deadline=None)  # the first example compiles
@given(
    seeds=st.lists(st.integers(0, 30), max_size=20),
    steps=st.lists(st.lists(st.integers(0, 2**62), max_size=3) | st.lists(st.integers(0, 60), max_size=40), max_size=5),
)
def test_compiled_numbering_matches_plain_torch(seeds: list[int], steps: list[list[int]]) -> None:
    given = torch.tensor(seeds, dtype=torch.int64)
    plain, compiled = Numbering(given), CompiledNumbering(given)
    for step in steps:
        ids = torch.tensor(step, dtype=torch.int64)
        assert torch.equal(plain.add(ids), compiled.add(ids))
        assert torch.equal(plain.ids, compiled.ids)
        assert len(plain) == len(compiled)
        wanted = torch.cat([ids + 1, given])
        assert torch.equal(plain.find(wanted), compiled.find(wanted))


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), min_size=4, max_size=9), max_size=6), st.integers(1, 3))
def test_compiled_first_matches_plain_torch_on_ties(ranges: list[list[int]], count: int) -> None:
    waits = torch.tensor([wait for own in ranges for wait in own], dtype=torch.float64)
    offsets = torch.tensor([0, *map(len, ranges)]).cumsum(0)
    assert torch.equal(first(waits, offsets, count), first_compiled(waits, offsets, count))
