"""Training with features left on disk: losses and gradients are bit-identical to features in memory."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.made_graphs import random_academy

from clusterctl.engine.graph import inference, storage
from clusterctl.engine.graph.storage import Graph, LabelledHeteroGraph, load, save
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import Batch
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
from clusterctl.engine.training.objectives.relation import RelationNodeClassification
from clusterctl.shared.errors import TaskError
from clusterctl.shared.spec import NodeClassificationTrain, NodeTrain

MakeGraph = Callable[..., Graph]
TRAIN = NodeTrain(fan_out=(4, 3), hidden_channels=16, sampling="labor", dropout=0.5)
CACHE = 4 * 300 + 60 * 7 * 4  # a fifth of the rows


@pytest.fixture
def graph(random_graph: MakeGraph, tmp_path: Path) -> Graph:
    made = random_graph(nodes=300, edges=6000)
    save(replace(made, x=made.x.float()), tmp_path / "graph.pt")
    return load(Graph, tmp_path / "graph.pt")


def trained(
    objective: NodeClassification | OwnNodeClassification | RelationNodeClassification,
    graph: Graph | LabelledHeteroGraph,
) -> list[torch.Tensor]:
    seeds = graph.train[:50]
    batch = Batch(1, 0, seeds, torch.ones(len(seeds)), len(seeds), seeds)
    loss = objective.loss(batch, objective.prepare(batch))  # type: ignore[arg-type]
    loss.backward()  # type: ignore[no-untyped-call]
    return [loss.detach(), *(weights.grad for weights in objective.model.parameters() if weights.grad is not None)]


@pytest.mark.parametrize("model", ["sage", "gcn"])
@pytest.mark.parametrize("width", [16, 5])  # with the second, inference projects before it aggregates
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_step_matches_features_in_memory(
    graph: Graph, lone_task: Task, model: str, width: int, precision: str
) -> None:
    train = replace(TRAIN, model=model, hidden_channels=width, precision=precision)
    memory, disk = (NodeClassification(graph, train, lone_task, cache) for cache in (None, CACHE))
    for one, other in zip(trained(memory, graph), trained(disk, graph), strict=True):
        assert torch.equal(one, other)
    if precision == "float32":
        assert memory.evaluate(("val", "test")) == disk.evaluate(("val", "test"))


def test_a_step_of_a_hop_model_matches_features_in_memory(graph: Graph, lone_task: Task) -> None:
    train = NodeClassificationTrain(model="gat", fan_out=(4, 3), options={"dropout": 0.5})
    memory, disk = (OwnNodeClassification(graph, train, lone_task, cache) for cache in (None, CACHE))
    for one, other in zip(trained(memory, graph), trained(disk, graph), strict=True):
        assert torch.equal(one, other)
    assert memory.evaluate(("val", "test")) == disk.evaluate(("val", "test"))


@pytest.mark.parametrize(("precision", "self_loops"), [("float32", True), ("bfloat16", False)])
def test_a_step_on_several_types_matches_features_in_memory(
    lone_task: Task, tmp_path: Path, precision: str, self_loops: bool
) -> None:
    save(random_academy(torch.float32), tmp_path / "graph.pt")
    graph = load(LabelledHeteroGraph, tmp_path / "graph.pt")
    options: dict[str, object] = {"dropout": 0.5, "attention_dropout": 0.3, "self_loops": self_loops}
    train = NodeClassificationTrain(model="rgat", fan_out=(4, 3), precision=precision, options=options)
    memory, disk = (RelationNodeClassification(graph, train, lone_task, cache) for cache in (None, 1000))
    lone_task.clock.restart("sampling")
    for one, other in zip(trained(memory, graph), trained(disk, graph), strict=True):
        assert torch.equal(one, other)
    assert 0.2 < lone_task.clock.lap("compute").read()["cache_hit_rate"] < 1
    assert memory.evaluate(("val", "test")) == disk.evaluate(("val", "test"))


@pytest.mark.parametrize("depth", [2, 3])
def test_evaluation_keeps_no_rows_of_all_nodes_in_memory(
    graph: Graph, lone_task: Task, monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    files: list[tuple[int, Path | None]] = []
    create = storage._nameless_file

    def noted(size: int, folder: Path | None) -> int:
        files.append((size, folder))
        return create(size, folder)

    monkeypatch.setattr(storage, "_nameless_file", noted)
    monkeypatch.setattr(inference, "shared_table", None)
    train = replace(TRAIN, fan_out=(2,) * depth)
    disk = NodeClassification(graph, train, lone_task, CACHE)
    disk.evaluate(("val",))
    rows, messages = 300 * 16 * 4, 300 * graph.num_classes * 4  # the last layer's messages are narrower than its input
    inner = [rows, rows] * (depth - 2)
    assert files == [(size, Path(tempfile.gettempdir())) for size in (rows, *inner, messages)]


def test_a_full_disk_is_an_error_that_names_the_folder(
    graph: Graph, lone_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(TaskError, match="no space for 0.0 GB .* in /") as caught:
        NodeClassification(graph, TRAIN, lone_task, CACHE).evaluate(("val",))
    assert "TMPDIR" in caught.value.hint


def test_a_step_reports_the_cache_hit_rate_and_the_bytes_read(graph: Graph, lone_task: Task) -> None:
    objective = NodeClassification(graph, TRAIN, lone_task, CACHE)
    lone_task.clock.restart("sampling")
    trained(objective, graph)
    lap = lone_task.clock.lap("compute").read()
    assert 0.2 < lap["cache_hit_rate"] < 1
    assert lap["bytes_read"] % 4096 == 0 < lap["bytes_read"]


def test_a_cached_aggregation_needs_the_features_in_memory(graph: Graph, lone_task: Task) -> None:
    with pytest.raises(TaskError, match="as large as the features"):
        NodeClassification(graph, replace(TRAIN, cache_first_aggregation=True), lone_task, CACHE)
