"""Temporal sampling with PyG's loaders: no seed sees its future."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.made_graphs import BOUGHT, BOUGHT_BY, KNOWS, full_walk, one_type, shop
from torch import Tensor
from torch_geometric.testing.feature_store import MyFeatureStore
from torch_geometric.testing.graph_store import MyGraphStore

from clusterctl.pyg import NeighborLoader

SEEDS = torch.tensor([3, 17, 8, 29])


def only_batch(data: Any, num_neighbors: Any, **options: Any) -> Any:
    options = {"input_nodes": SEEDS, "batch_size": 100, **options}
    (batch,) = NeighborLoader(data, num_neighbors, **options)
    return batch


def by_time(edge_index: Tensor, time: Tensor) -> Callable[[int], list[int]]:
    """The edges into a node, earliest first."""

    def into(node: int) -> list[int]:
        own = (edge_index[1] == node).nonzero().squeeze(1)
        return own[time[own].argsort(stable=True)].tolist()  # type: ignore[no-any-return]

    return into


@pytest.mark.parametrize("given", [None, torch.tensor([0, 5, 12, 19])])
def test_full_samples_have_exactly_the_neighbours_up_to_the_seed_time(given: Tensor | None) -> None:
    graph = one_type(edges=200)
    batch = only_batch(graph, [-1, -1], time_attr="time", input_time=given)
    limits = graph.time[SEEDS] if given is None else given
    assert (graph.time[batch.n_id[4:]] <= limits[batch.batch[4:]]).all()

    def sees(_: Any, place: int, target: tuple[int, int]) -> bool:
        return bool(graph.time[graph.edge_index[0, place]] <= limits[target[0]])

    seeds = list(enumerate(SEEDS.tolist()))
    nodes, edges = full_walk({("", "", ""): graph.edge_index}, [""], {"": seeds}, 2, sees)
    assert sorted(zip(batch.batch.tolist(), batch.n_id.tolist(), strict=True)) == sorted(nodes[""])
    assert sorted(batch.e_id.tolist()) == sorted(place for _, _, place in edges[("", "", "")])
    assert given is None or torch.equal(batch.seed_time, given)


def test_full_samples_have_exactly_the_edges_up_to_the_seed_time() -> None:
    graph = one_type(edges=200)
    limits = torch.tensor([0, 5, 12, 19])
    batch = only_batch(graph, [-1, -1], time_attr="edge_time", input_time=limits)

    def sees(_: Any, place: int, target: tuple[int, int]) -> bool:
        return bool(graph.edge_time[place] <= limits[target[0]])

    _, edges = full_walk({("", "", ""): graph.edge_index}, [""], {"": list(enumerate(SEEDS.tolist()))}, 2, sees)
    assert sorted(batch.e_id.tolist()) == sorted(place for _, _, place in edges[("", "", "")])
    assert torch.equal(graph.edge_time[batch.e_id], batch.edge_time)


@pytest.mark.parametrize("attribute", ["time", "edge_time"])
def test_the_last_strategy_takes_the_latest_visible_edges(attribute: str) -> None:
    graph = one_type()
    limits = torch.tensor([4, 8, 12, 19])
    batch = only_batch(graph, [3], time_attr=attribute, input_time=limits, temporal_strategy="last")
    times = graph.time[graph.edge_index[0]] if attribute == "time" else graph.edge_time
    into = by_time(graph.edge_index, times)
    for number, seed in enumerate(SEEDS.tolist()):
        seen = [place for place in into(seed) if times[place] <= limits[number]]
        got = batch.e_id[batch.edge_index[1] == number]
        assert times[got].sort().values.tolist() == times[seen[-3:]].tolist()


def test_the_uniform_strategy_samples_all_visible_edges() -> None:
    graph = one_type()
    seeds = torch.full((600,), 7)
    loader = NeighborLoader(graph, [2], seeds, torch.full((600,), 10), time_attr="time", batch_size=200)
    torch.manual_seed(0)
    seen = {edge for batch in loader for edge in batch.e_id.tolist()}
    sources = graph.edge_index[0]
    allowed = ((graph.edge_index[1] == 7) & (graph.time[sources] <= 10)).nonzero().squeeze(1)
    assert seen == set(allowed.tolist())


@pytest.mark.parametrize("attribute", ["time", "edge_time"])
def test_full_typed_samples_have_exactly_the_edges_up_to_the_seed_time(attribute: str) -> None:
    graph = shop(edges=90)
    limits = torch.tensor([3, 9, 15])
    options: dict[str, Any] = {"input_nodes": ("item", SEEDS[:3]), "input_time": limits, "time_attr": attribute}
    batch = only_batch(graph, [-1, -1], **options)

    def sees(edge_type: Any, place: int, target: tuple[int, int]) -> bool:
        store = graph[edge_type]
        if attribute == "edge_time":
            return bool(store.edge_time[place] <= limits[target[0]])
        return bool(graph[edge_type[0]].time[store.edge_index[0, place]] <= limits[target[0]])

    edges_by_type = {edge_type: graph[edge_type].edge_index for edge_type in graph.edge_types}
    seeds = {"item": list(enumerate(SEEDS[:3].tolist()))}
    _, edges = full_walk(edges_by_type, graph.node_types, seeds, 2, sees)
    for edge_type in (BOUGHT, BOUGHT_BY, KNOWS):
        assert sorted(batch[edge_type].e_id.tolist()) == sorted(place for _, _, place in edges[edge_type])


def test_types_without_times_are_not_filtered() -> None:
    graph = shop()
    del graph["user"].time
    batch = only_batch(
        graph, [-1], input_nodes=("item", SEEDS[:3]), input_time=torch.zeros(3, dtype=torch.int64), time_attr="time"
    )
    assert batch[BOUGHT].edge_index.size(1) == int(torch.isin(graph[BOUGHT].edge_index[1], SEEDS[:3]).sum())


def test_stores_are_sampled_by_time_only_if_their_edges_are_sorted() -> None:
    graph = one_type()
    features, edges = MyFeatureStore(), MyGraphStore()
    features.put_tensor(graph.x, group_name=None, attr_name="x", index=None)
    features.put_tensor(graph.time, group_name=None, attr_name="time", index=None)
    order = (graph.edge_index[1] * 100 + graph.time[graph.edge_index[0]]).argsort()
    ends = graph.edge_index[:, order]
    edges.put_edge_index(ends, edge_type=None, layout="coo", size=(50, 50), is_sorted=True)
    batch = only_batch((features, edges), [-1], time_attr="time", input_time=torch.full((4,), 10))
    own = torch.isin(ends[1], SEEDS) & (graph.time[ends[0]] <= 10)
    assert batch.edge_index.size(1) == int(own.sum())
    assert (graph.time[batch.n_id[4:]] <= 10).all()

    edges = MyGraphStore()
    edges.put_edge_index(ends, edge_type=None, layout="coo", size=(50, 50), is_sorted=False)
    with pytest.raises(ValueError, match="requires that edges are sorted by destination, and by source time"):
        only_batch((features, edges), [-1], time_attr="time")


def test_fractional_times_are_not_rounded() -> None:
    graph = one_type()
    graph.time = graph.time + 0.5
    batch = only_batch(graph, [-1], time_attr="time", input_time=torch.full((4,), 10))
    assert float(graph.time[batch.n_id[4:]].max()) == 9.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_attr": "edge_time"}, "Seed time needs to be specified"),
        ({"time_attr": "time", "temporal_strategy": "first"}, "No valid temporal strategy found"),
        ({"time_attr": "time", "weight_attr": "weight"}, "Biased node temporal sampling not yet supported"),
        ({"time_attr": "edge_time", "weight_attr": "weight"}, "Biased edge temporal sampling not yet supported"),
        ({"time_attr": "time", "is_sorted": True}, "Found invalid non-sorted temporal neighborhood"),
    ],
)
def test_arguments_that_pyg_lib_rejects_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        only_batch(one_type(), [-1], **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_attr": "time"}, "Seed time needs to be specified"),
        ({"time_attr": "edge_time"}, "Seed time needs to be specified"),
        ({"time_attr": "edge_time", "weight_attr": "weight"}, "Biased temporal sampling not yet supported"),
    ],
)
def test_typed_arguments_that_pyg_lib_rejects_are_rejected(options: dict[str, Any], message: str) -> None:
    graph = shop()
    del graph["item"].time
    with pytest.raises(RuntimeError, match=message):
        only_batch(graph, [-1], input_nodes=("item", SEEDS), **options)
