from __future__ import annotations

from pathlib import Path

import torch

from clusterctl.engine.graph.storage import HeteroGraph, compressed, load, save

OF_USER, LIKES = ("item", "rev_to", "user"), ("user", "likes", "user")


def shop() -> HeteroGraph:
    edges = {
        OF_USER: compressed(torch.tensor([[3, 0, 3, 1], [2, 0, 2, 0]]), 3, 4),
        LIKES: compressed(torch.tensor([[1], [0]]), 3),
    }
    return HeteroGraph(
        num_nodes={"user": 3, "item": 4},
        indptr={edge_type: indptr for edge_type, (indptr, _) in edges.items()},
        indices={edge_type: indices for edge_type, (_, indices) in edges.items()},
        x={"item": torch.arange(8.0).view(4, 2)},
    )


def test_every_relation_is_stored_by_target_with_duplicate_edges() -> None:
    graph = shop()
    relation = graph.relation(OF_USER)
    assert (relation.indptr.tolist(), relation.indices.tolist()) == ([0, 2, 2, 4], [0, 1, 3, 3])
    assert (relation.indptr.dtype, relation.indices.dtype) == (torch.int64, torch.int32)
    assert relation.degree.tolist() == [2, 0, 2]


def test_a_saved_graph_is_loaded_memory_mapped_and_equal(tmp_path: Path) -> None:
    graph = shop()
    save(graph, tmp_path / "graph.pt")
    loaded = load(HeteroGraph, tmp_path / "graph.pt")
    assert loaded.num_nodes == graph.num_nodes
    assert list(loaded.indptr) == list(graph.indptr)
    for ours, theirs in ((loaded.indptr, graph.indptr), (loaded.indices, graph.indices)):
        assert all(torch.equal(ours[edge_type], theirs[edge_type]) for edge_type in graph.indptr)
    assert str(tmp_path) in Path("/proc/self/maps").read_text()


def test_moving_a_graph_does_not_copy_tensors_that_already_match() -> None:
    graph = shop()
    moved = graph.to(torch.device("cpu"), torch.float64)
    assert moved.x["item"].dtype == torch.float64
    assert moved.indices[OF_USER].data_ptr() == graph.indices[OF_USER].data_ptr()
