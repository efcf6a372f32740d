"""A sampler of the user's own: what it is called with, what it may return, and errors that name it."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clusterctl.engine.graph.storage import Graph
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import EpochPlan
from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
from clusterctl.engine.training.own.function import OwnSampler
from clusterctl.shared.errors import TaskError
from clusterctl.shared.spec import Job, NodeClassificationTrain

MakeGraph = Callable[..., Graph]
SEEDS = torch.tensor([8, 3, 21])


class Everything:
    """All nodes of the graph, the seeds first."""

    calls: list[tuple[int, ...]]

    def __init__(self, graph: Graph, fan_out: tuple[int, ...]) -> None:
        self.graph, self.fan_out, self.calls = graph, fan_out, []

    def sample(self, seeds: Tensor, epoch: int, step: int, seed: int) -> tuple[Tensor, ...]:
        self.calls.append((epoch, step, seed))
        others = torch.arange(self.graph.num_nodes)
        nodes = torch.cat([seeds, others[~torch.isin(others, seeds)]])
        row = nodes.argsort()
        targets = others.repeat_interleave(self.graph.indptr.diff())
        edge_index = row[torch.stack([self.graph.indices.long(), targets])]
        return nodes, edge_index, torch.arange(self.graph.indices.numel())


@pytest.fixture
def users() -> Iterator[types.ModuleType]:
    module = types.ModuleType("users_sampler")
    sys.modules["users_sampler"] = module
    module.Sampler = Everything  # type: ignore[attr-defined]
    yield module
    del sys.modules["users_sampler"]


def made(graph: Graph, seed: int = 7) -> OwnSampler:
    return OwnSampler("users_sampler:Sampler", graph, (3, 2), seed)


def test_the_loss_is_that_of_the_sample_and_its_edges_are_counted(
    users: types.ModuleType, random_graph: MakeGraph, lone_task: Task
) -> None:
    graph = random_graph()
    train = NodeClassificationTrain(
        model="GCN", sampler="users_sampler:Sampler", seed=4, fan_out=(9, 9), precision="float64"
    )
    objective = OwnNodeClassification(graph, train, lone_task)
    targets = torch.arange(60).repeat_interleave(graph.degree)
    rows = objective.model.train()(graph.x, torch.stack([graph.indices.long(), targets]))
    plan = EpochPlan(objective.seeds, 13, train.seed, 0, 1)
    for batch in plan.batches(2, done=13):  # as after a resume: the second step of the second epoch is the first
        sample = objective.prepare(batch)
        expected = F.cross_entropy(rows[batch.everyone], graph.y[batch.everyone])
        torch.testing.assert_close(objective.loss(batch, sample), expected, rtol=0, atol=1e-12)
        assert objective.work(batch, sample) == (batch.total, graph.indices.numel())
    own = objective._form._sampler._own  # type: ignore[union-attr]
    assert own.fan_out == (9, 9)
    assert own.calls == [(0, 0, 4), (2, 1, 4), (2, 2, 4)]  # the first is before the training


def test_attributes_of_edges_follow_the_sampled_edges(users: types.ModuleType, random_graph: MakeGraph) -> None:
    graph = random_graph()
    graph = replace(graph, edge_weight=torch.arange(graph.indices.numel()).double())
    sample = made(graph).sample(SEEDS, 1, 0)
    assert torch.equal(sample.of_edges("edge_weight"), graph.edge_weight)  # type: ignore[arg-type]
    assert sample.randomness == (7, 1, 0)
    users.Sampler = returning(lambda seeds: (seeds, torch.empty(2, 0, dtype=torch.int64)))  # type: ignore[attr-defined]
    with pytest.raises(TaskError, match="gives no edges, whose attributes the model takes"):
        made(graph).sample(SEEDS, 1, 0)


def test_a_sample_without_edges_may_be_of_any_type(users: types.ModuleType, random_graph: MakeGraph) -> None:
    users.Sampler = returning(lambda seeds: (seeds, torch.tensor([[], []])))  # type: ignore[attr-defined]
    assert made(random_graph()).sample(SEEDS, 1, 0).edge_index.dtype == torch.int64


def returning(result: Callable[[Tensor], Any]) -> type:
    class Returning:
        def __init__(self, graph: Graph, fan_out: tuple[int, ...]) -> None: ...

        def sample(self, seeds: Tensor, epoch: int, step: int, seed: int) -> Any:
            return result(seeds)

    return Returning


NONE = torch.empty(2, 0, dtype=torch.int64)


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (lambda seeds: seeds, r"gives \[3\]"),
        (lambda seeds: (seeds,), "gives a tuple of 1"),
        (lambda seeds: (seeds.flip(0), NONE), "gives nodes that do not begin with the seeds"),
        (lambda seeds: (seeds[:2], NONE), "gives nodes that do not begin with the seeds"),
        (lambda seeds: (seeds.tolist(), NONE), "gives nodes list"),
        (lambda seeds: (seeds.float(), NONE), "gives nodes of type float32"),
        (lambda seeds: (torch.cat([seeds, torch.tensor([60])]), NONE), "gives nodes from 3 to 60"),
        (lambda seeds: (seeds, torch.tensor([[0], [3]])), "gives edge_index from 0 to 3"),
        (lambda seeds: (seeds, torch.tensor([[-1], [0]])), "gives edge_index from -1 to 0"),
        (lambda seeds: (seeds, NONE.t()), r"gives edge_index \[0, 2\]"),
        (lambda seeds: (seeds, NONE, torch.tensor([0])), "gives 1 edges, and edge_index has 0"),
        (lambda seeds: (seeds, torch.tensor([[0], [1]]), torch.tensor([10_000])), "gives edges from 10000 to 10000"),
        (lambda seeds: 1 / 0, "fails on 3 seeds: ZeroDivisionError"),
    ],
)
def test_an_unusable_result_is_refused_with_the_samplers_name(
    users: types.ModuleType, random_graph: MakeGraph, result: Callable[[Tensor], Any], problem: str
) -> None:
    users.Sampler = returning(result)  # type: ignore[attr-defined]
    with pytest.raises(TaskError, match=f"train.sampler = users_sampler:Sampler {problem}"):
        made(random_graph()).sample(SEEDS, 1, 0)


def test_a_class_that_cannot_be_made_is_named(users: types.ModuleType, random_graph: MakeGraph) -> None:
    with pytest.raises(TaskError, match=r"train.sampler = users_sampler:Other: users_sampler has no Other"):
        OwnSampler("users_sampler:Other", random_graph(), (3,), 0)
    users.Sampler = lambda graph: None  # type: ignore[attr-defined]
    with pytest.raises(TaskError, match="Sampler cannot be made") as error:
        made(random_graph())
    assert "the graph and train.fan_out" in error.value.hint
    users.Sampler = lambda graph, fan_out: None  # type: ignore[attr-defined]
    with pytest.raises(TaskError, match="has no sample"):
        made(random_graph())


def test_a_model_by_layers_cannot_use_it(users: types.ModuleType, random_graph: MakeGraph, lone_task: Task) -> None:
    train = NodeClassificationTrain(model="support.own_nets:Gat", sampler="users_sampler:Sampler")
    with pytest.raises(TaskError, match=r"train.sampler needs a model with forward\(x, edge_index\)"):
        OwnNodeClassification(random_graph(), train, lone_task)


def test_a_sampler_is_code_that_travels_with_the_job() -> None:
    train = NodeClassificationTrain(model="GCN", sampler="my:Sampler")
    assert Job(name="j", workload="node-classification", train=train).has_own_code
