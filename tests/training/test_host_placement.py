"""`data.placement = "host"`: samples for a GPU from edges and features on its host give the same results."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from support.pretended_gpu import GPU, PretendedTensor, counted
from support.pretended_streams import Streams
from torch import Tensor, nn

from clusterctl.engine.graph.sampling import StaticSampler
from clusterctl.engine.graph.storage import Graph
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import EpochPlan
from clusterctl.engine.training.loop import prefetched
from clusterctl.engine.training.objective import Objective
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
from clusterctl.shared.errors import TaskError
from clusterctl.shared.spec import Data, DeepSageTrain, LoopTrain, NodeClassificationTrain, RedditTrain, SyntheticTrain

MakeGraph = Callable[..., Graph]


class Mean(nn.Module):
    """A model as PyG's users write it."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(features, 8), nn.Linear(8, classes)])

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        for layer in self.layers:
            sums = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]] * edge_weight[:, None])
            x = layer(x + sums).relu()
        return x


@pytest.fixture(autouse=True)
def users(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("users")
    module.Mean = Mean  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "users", module)


SMALL: dict[str, Any] = {"batch_size": 8, "seed": 1, "precision": "float64"}
NODES: dict[str, Any] = {"hidden_channels": 8, "fan_out": (3, 2), **SMALL}
OWN: dict[str, Any] = {"fan_out": (3, 2), **SMALL}
TRAININGS: dict[str, tuple[LoopTrain, Any]] = {
    "sage": (RedditTrain(**NODES), NodeClassification),
    "gcn": (SyntheticTrain(**NODES), NodeClassification),
    "labor": (RedditTrain(sampling="labor", **NODES), NodeClassification),
    "three layers, converted": (
        DeepSageTrain(hidden_channels=8, fan_out=(3, 2, 2), batch_size=8, precision="float32"),
        NodeClassification,
    ),
    "gat": (NodeClassificationTrain(model="gat", options={"hidden": 4}, **OWN), OwnNodeClassification),
    "forward(x, edge_index, edge_weight)": (
        NodeClassificationTrain(model="users:Mean", **OWN),
        OwnNodeClassification,
    ),
}


@pytest.mark.parametrize("cache", [None, 200], ids=["in memory", "on disk"])
@pytest.mark.parametrize("name", TRAININGS)
def test_samples_from_the_host_give_the_same_losses_and_scores(
    name: str, cache: int | None, random_graph: MakeGraph, lone_task: Task, monkeypatch: pytest.MonkeyPatch, mapped: Any
) -> None:
    train, kind = TRAININGS[name]
    graph = random_graph(nodes=40, edges=300)
    if name.startswith("forward"):
        graph = replace(graph, edge_weight=torch.rand(graph.indices.numel(), dtype=torch.float64))
    if cache is not None:
        graph = replace(graph, x=mapped(graph.x))
    expected = results(kind(graph, train, lone_task), lone_task)
    streams = Streams()
    streams.install(monkeypatch)
    task = replace(lone_task, device=GPU)
    with torch.no_grad(), counted(GPU, streams):
        objective = kind(graph, train, task, cache, host=True)
        for values in (objective._graph.indices, objective._graph.x, objective._graph.edge_weight):
            assert not isinstance(values, PretendedTensor)
        assert isinstance(objective._graph.indptr, PretendedTensor)
        found = results(objective, task)
    assert found[0] == pytest.approx(expected[0], rel=1e-12 if train.precision == "float64" else 1e-6)
    assert found[1] == expected[1]
    assert not streams.problems
    assert streams.threads["prefetch"]
    assert streams.threads["gather"]


@torch.no_grad()
def results(objective: Objective[Any], task: Task) -> tuple[list[float], Any]:
    """The losses of an epoch, and the scores of the weights."""
    batches = EpochPlan(objective.seeds, 8, 0, 0, 1).batches(1)
    losses = [objective.loss(*pair) for pair in prefetched(batches, objective.prepare, task.device)]
    objective.model.eval()
    return torch.stack(losses).tolist(), objective.evaluate(["train", "val", "test"])


def test_a_cpu_says_that_it_changes_nothing_and_samples_as_before(
    random_graph: MakeGraph, lone_task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    train = RedditTrain(**NODES)
    plain = results(NodeClassification(random_graph(), train, lone_task), lone_task)
    assert results(NodeClassification(random_graph(), train, lone_task, host=True), lone_task) == plain
    assert capsys.readouterr().out == 'data.placement = "host" changes nothing: this training runs on CPUs\n'


def test_sizes_that_are_known_beforehand_need_the_edges_on_the_gpu(
    random_graph: MakeGraph, lone_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    Streams().install(monkeypatch)
    task = replace(lone_task, device=GPU)
    with torch.no_grad(), counted(GPU):
        samplers = [
            NodeClassification(random_graph(), RedditTrain(**NODES), task, host=host)._sampler for host in (False, True)
        ]
    assert [isinstance(sampler, StaticSampler) for sampler in samplers] == [True, False]


REFUSED: list[tuple[LoopTrain, str, str]] = [
    (RedditTrain(cache_first_aggregation=True), "reddit", "keeps a table as large as the features"),
    (RedditTrain(cuda_graph=True), "reddit", "captures no rows that are fetched"),
    (RedditTrain(device="cpu"), "reddit", "is for GPUs"),
    (NodeClassificationTrain(model="rgat"), "node-classification", 'not supported by model "rgat"'),
    (NodeClassificationTrain(model="users:Mean", batch="clusters"), "node-classification", 'batch = "clusters"'),
    (NodeClassificationTrain(model="users:Mean", batch="graph"), "node-classification", 'batch = "graph"'),
    (NodeClassificationTrain(model="users:Mean", sampler="users:S"), "node-classification", "train.sampler"),
]


@pytest.mark.parametrize(("train", "workload", "problem"), REFUSED)
def test_what_needs_the_edges_on_the_gpu_is_refused_by_name(
    train: LoopTrain, workload: str, problem: str, random_graph: MakeGraph, lone_task: Task
) -> None:
    found = dict(train.contradictions(workload, Data(placement="host", root="/d")))
    assert problem in found["data.placement"]
    kind: Any = OwnNodeClassification if isinstance(train, NodeClassificationTrain) else NodeClassification
    if train.device == "auto":  # torchrun checks no contradictions; a CPU is announced
        with pytest.raises(TaskError) as refused:
            kind(random_graph(), train, lone_task, host=True)
        assert problem in refused.value.message
