"""The optional accelerations on one rank: which of them are exact, and how close the others are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from clusterctl.engine.graph.storage import Graph
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import Batch
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.shared.errors import TaskError
from clusterctl.shared.spec import NodeTrain

MakeGraph = Callable[..., Graph]
EXACT = NodeTrain(fan_out=(4, -1), hidden_channels=9, precision="float64")


def batch_of(graph: Graph) -> Batch:
    return Batch(1, 0, graph.train, torch.ones(graph.train.numel()), graph.train.numel(), graph.train)


def loss_and_gradients(graph: Graph, train: NodeTrain, task: Task) -> list[torch.Tensor]:
    objective = NodeClassification(graph, train, task)
    batch = batch_of(graph)
    loss = objective.loss(batch, objective.prepare(batch))
    loss.backward()  # type: ignore[no-untyped-call]
    return [
        loss.detach(),
        *(parameter.grad for parameter in objective.model.parameters() if parameter.grad is not None),
    ]


@pytest.mark.parametrize("model", ["sage", "gcn"])
@pytest.mark.parametrize("width", [9, 3])  # with the second, inference projects before it aggregates
def test_a_cached_first_aggregation_equals_aggregating_all_neighbours(
    random_graph: MakeGraph, lone_task: Task, model: str, width: int
) -> None:
    graph, train = random_graph(), replace(EXACT, model=model, hidden_channels=width)
    plain = loss_and_gradients(graph, train, lone_task)
    cached = loss_and_gradients(graph, replace(train, cache_first_aggregation=True), lone_task)
    torch.testing.assert_close(cached, plain, rtol=0, atol=1e-12)

    both = [NodeClassification(graph, replace(train, cache_first_aggregation=c), lone_task) for c in (False, True)]
    assert both[0].evaluate(("val", "test")) == both[1].evaluate(("val", "test"))


def test_a_cached_first_aggregation_samples_one_hop_less(random_graph: MakeGraph, lone_task: Task) -> None:
    graph = random_graph(edges=3000)
    objective = NodeClassification(graph, replace(EXACT, fan_out=(4, 3), cache_first_aggregation=True), lone_task)
    outer, inner = objective.prepare(batch_of(graph)).blocks
    assert outer.neighbors.numel() == 0
    assert inner.offsets.diff().max() == 4


@pytest.mark.parametrize("cached", [False, True])
def test_with_replacement_every_node_with_neighbours_gets_fan_out_of_them(
    random_graph: MakeGraph, lone_task: Task, cached: bool
) -> None:
    graph = random_graph()
    train = replace(EXACT, fan_out=(40, 30), replace=True, cache_first_aggregation=cached)
    outer, inner = NodeClassification(graph, train, lone_task).prepare(batch_of(graph)).blocks
    for block, count in ((inner, 40), (outer, 0 if cached else 30)):
        assert torch.equal(block.offsets.diff(), ((graph.degree[block.nodes] > 0) * count).int())


@pytest.mark.parametrize(
    ("model", "cached"),
    [
        ("sage", False),
        ("gcn", True),
        pytest.param("sage", True, marks=pytest.mark.long),
        pytest.param("gcn", False, marks=pytest.mark.long),
    ],
)
def test_bfloat16_keeps_weights_and_gradients_in_float32_and_stays_close(
    random_graph: MakeGraph, lone_task: Task, model: str, cached: bool
) -> None:
    graph = random_graph(nodes=2000, edges=600_000)  # degrees above 256, where bfloat16 cannot count
    train = replace(EXACT, model=model, fan_out=(-1, -1), hidden_channels=64, cache_first_aggregation=cached)
    coarse = replace(train, precision="bfloat16")
    expected = loss_and_gradients(graph, train, lone_task)
    got = loss_and_gradients(graph, coarse, lone_task)
    assert {tensor.dtype for tensor in got} == {torch.float32}
    for ours, exact in zip(got, expected, strict=True):
        assert float((ours - exact).norm() / exact.norm()) < 0.05
    assert NodeClassification(graph, coarse, lone_task).evaluate(("test",))["test"].total == graph.test.numel()


def test_a_step_reports_gathering_compute_and_sampled_edges(random_graph: MakeGraph, lone_task: Task) -> None:
    graph = random_graph()
    objective = NodeClassification(graph, EXACT, lone_task)
    batch = batch_of(graph)
    prepared = objective.prepare(batch)
    lone_task.clock.restart("sampling")
    objective.loss(batch, prepared)
    lap = lone_task.clock.lap("compute").read()
    assert lap["gathering"] > 0
    assert lap["compute"] > 0
    edges = sum(block.neighbors.numel() for block in prepared.blocks)
    assert lap["edges_per_second"] / lap["nodes_per_second"] == pytest.approx(edges / batch.total, rel=0.01)


def test_labor_with_replacement_is_refused(random_graph: MakeGraph, lone_task: Task) -> None:
    train = replace(EXACT, sampling="labor", replace=True)
    with pytest.raises(TaskError, match="without replacement") as refused:
        NodeClassification(random_graph(), train, lone_task)
    assert refused.value.hint == "set train.replace = false"
