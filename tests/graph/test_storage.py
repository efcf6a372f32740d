from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from clusterctl.graph.storage import Graph, compressed, load, resident, save
from clusterctl.task.task import Task

MakeGraph = Callable[..., Graph]


def test_edges_are_kept_by_target_with_ascending_sources() -> None:
    indptr, indices = compressed(torch.tensor([[3, 0, 1, 0, 3], [1, 1, 0, 3, 1]]), num_nodes=5)
    assert (indptr.dtype, indices.dtype) == (torch.int64, torch.int32)
    assert indptr.tolist() == [0, 1, 4, 4, 5, 5]
    assert indices.tolist() == [1, 0, 3, 3, 0]


def test_a_saved_graph_comes_back_mapped_and_equal(random_graph: MakeGraph, tmp_path: Path) -> None:
    graph = random_graph()
    assert graph.degree.numel() == graph.num_nodes  # computed before saving: it is not part of the file
    save(graph, tmp_path / "graph.pt")
    loaded = load(Graph, tmp_path / "graph.pt")
    for name, value in vars(loaded).items():
        assert torch.equal(value, getattr(graph, name)) if isinstance(value, Tensor) else value == graph.num_classes
    assert str(tmp_path) in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_only_another_precision_copies_the_features(
    random_graph: MakeGraph, lone_task: Task, dtype: torch.dtype
) -> None:
    graph = random_graph()
    moved = resident(graph, lone_task, dtype)
    assert torch.equal(moved.x, graph.x.to(dtype))
    assert (moved.x.data_ptr() == graph.x.data_ptr()) == (dtype == torch.float64)
    assert moved.indices.data_ptr() == graph.indices.data_ptr()
