from __future__ import annotations

from pathlib import Path

import torch
from torch_geometric.data import HeteroData

from clusterctl.graph.hetero import HeteroGraph, from_hetero_data
from clusterctl.graph.storage import load, save

OF_USER, LIKES = ("item", "rev_to", "user"), ("user", "likes", "user")


def shop() -> HeteroData:
    data = HeteroData()
    data["user"].num_nodes = 3
    data["item"].x = torch.arange(8.0).view(4, 2)
    data[OF_USER].edge_index = torch.tensor([[3, 0, 3, 1], [2, 0, 2, 0]])
    data[LIKES].edge_index = torch.tensor([[1], [0]])
    return data


def test_every_relation_is_kept_by_target_with_repeated_edges_and_features_where_there_are_any() -> None:
    graph = from_hetero_data(shop())
    assert graph.num_nodes == {"user": 3, "item": 4}
    assert graph.num_edges == 5
    relation = graph.relation(OF_USER)
    assert (relation.indptr.tolist(), relation.indices.tolist()) == ([0, 2, 2, 4], [0, 1, 3, 3])
    assert (relation.indptr.dtype, relation.indices.dtype) == (torch.int64, torch.int32)
    assert relation.degree.tolist() == [2, 0, 2]
    assert list(graph.x) == ["item"]


def test_a_saved_graph_comes_back_mapped_and_equal(tmp_path: Path) -> None:
    graph = from_hetero_data(shop())
    save(graph, tmp_path / "graph.pt")
    loaded = load(HeteroGraph, tmp_path / "graph.pt")
    assert loaded.num_nodes == graph.num_nodes
    assert loaded.edge_types == graph.edge_types
    for ours, theirs in ((loaded.indptr, graph.indptr), (loaded.indices, graph.indices)):
        assert all(torch.equal(ours[edge_type], theirs[edge_type]) for edge_type in graph.edge_types)
    assert str(tmp_path) in Path("/proc/self/maps").read_text()


def test_moving_copies_nothing_that_is_there_already() -> None:
    graph = from_hetero_data(shop())
    moved = graph.to(torch.device("cpu"), torch.float64)
    assert moved.x["item"].dtype == torch.float64
    assert moved.indices[OF_USER].data_ptr() == graph.indices[OF_USER].data_ptr()
