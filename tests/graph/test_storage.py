from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from clusterctl.engine.graph.storage import FILE, Graph, compressed, load, resident, save, shared, whole
from clusterctl.engine.task.task import Task
from clusterctl.shared.record.once import prepared_once

MakeGraph = Callable[..., Graph]


def test_edges_are_stored_by_target_with_ascending_sources() -> None:
    indptr, indices = compressed(torch.tensor([[3, 0, 1, 0, 3], [1, 1, 0, 3, 1]]), num_nodes=5)
    assert (indptr.dtype, indices.dtype) == (torch.int64, torch.int32)
    assert indptr.tolist() == [0, 1, 4, 4, 5, 5]
    assert indices.tolist() == [1, 0, 3, 3, 0]


def test_a_saved_graph_is_loaded_memory_mapped_and_equal(random_graph: MakeGraph, tmp_path: Path) -> None:
    graph = random_graph()
    assert graph.degree.numel() == graph.num_nodes  # computed before saving, but not saved
    save(graph, tmp_path / "graph.pt")
    loaded = load(Graph, tmp_path / "graph.pt")
    for name, value in vars(loaded).items():
        assert torch.equal(value, getattr(graph, name)) if isinstance(value, Tensor) else value == getattr(graph, name)
    assert str(tmp_path) in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_are_copied_only_to_change_the_dtype(
    random_graph: MakeGraph, lone_task: Task, dtype: torch.dtype
) -> None:
    graph = random_graph()
    moved = resident(graph, lone_task, dtype)
    assert torch.equal(moved.x, graph.x.to(dtype))
    assert (moved.x.data_ptr() == graph.x.data_ptr()) == (dtype == torch.float64)
    assert moved.indices.data_ptr() == graph.indices.data_ptr()


@pytest.mark.parametrize("damage", ["bit", "tail", "empty", "none"])
def test_every_kind_of_file_damage_is_detected(random_graph: MakeGraph, tmp_path: Path, damage: str) -> None:
    graph = random_graph()
    path = tmp_path / FILE
    save(graph, path)
    assert whole(tmp_path)
    content = bytearray(path.read_bytes())
    content[content.index(graph.x.numpy().tobytes()[:64]) + 5] ^= 1
    damaged = {"bit": bytes(content), "tail": path.read_bytes()[:-100], "empty": b""}
    path.unlink() if damage == "none" else path.write_bytes(damaged[damage])
    assert not whole(tmp_path)


def test_shared_data_is_built_once_and_rebuilt_when_damaged(random_graph: MakeGraph, tmp_path: Path) -> None:
    task = SimpleNamespace(prepared=lambda name, prepare, whole: prepared_once(tmp_path / name, prepare, whole=whole))
    built: list[Path] = []

    def build(scratch: Path) -> Graph:
        (scratch / "processed").mkdir()  # PyG's classes leave such folders behind
        built.append(scratch)
        return random_graph()

    def get(**identity: int) -> Graph:
        return shared(task, Graph, "random", identity, build)  # type: ignore[arg-type]

    assert torch.equal(get(seed=0).x, get(seed=0).x)
    assert len(built) == 1
    (folder,) = tmp_path.iterdir()
    assert [path.name for path in folder.iterdir()] == [FILE]
    with (folder / FILE).open("r+b") as file:
        file.truncate(1000)
    assert torch.equal(get(seed=0).x, random_graph().x)
    assert len(built) == 2
    get(seed=1)
    assert len(built) == 3
