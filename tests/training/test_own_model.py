"""The user's own models: their inputs, their results, and the errors for wrong ones."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

from clusterctl.errors import TaskError
from clusterctl.graph.hops import Hop, whole_hops
from clusterctl.graph.storage import Graph
from clusterctl.spec import NodeClassificationTrain
from clusterctl.task.task import Task
from clusterctl.training import own_inference
from clusterctl.training.epoch_plan import Batch
from clusterctl.training.own_objective import OwnNodeClassification

MakeGraph = Callable[..., Graph]
TRAIN = NodeClassificationTrain(model="users:Net", fan_out=(-1, -1), precision="float64")
WIDTH = 6
# PyG's convolutions that take separate source and target features.
LAYERS: dict[str, Callable[[int, int], nn.Module]] = {
    "SAGEConv": pyg.SAGEConv,
    "GraphConv": pyg.GraphConv,
    "GATConv": lambda *widths: pyg.GATConv(*widths, add_self_loops=False),
    "GATv2Conv": lambda *widths: pyg.GATv2Conv(*widths, add_self_loops=False),
    "TransformerConv": pyg.TransformerConv,
    "GINConv": lambda *widths: pyg.GINConv(nn.Linear(*widths)),
    "ResGatedGraphConv": pyg.ResGatedGraphConv,
    "MFConv": pyg.MFConv,
}


class Net(nn.Module):
    """Two layers of `kind`."""

    def __init__(self, features: int, classes: int, kind: str = "SAGEConv", dropout: float = 0.0) -> None:
        super().__init__()
        make = LAYERS[kind]
        self.convolutions = nn.ModuleList([make(features, WIDTH), make(WIDTH, classes)])
        self.dropout = dropout

    def layer(self, i: int, hop: Hop, x: Tensor) -> Tensor:
        x = hop.dropout(x, self.dropout)
        x = self.convolutions[i]((x, x[: hop.targets]), hop.edge_index)
        return x.relu() if i == 0 else x


class Whole(Net):
    """The same model, with `forward` instead of `layer`."""

    layer = None  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        if name == "layer":
            raise AttributeError(name)
        return super().__getattribute__(name)

    def forward(self, hops: list[Hop], x: Tensor) -> Tensor:
        for i, hop in enumerate(hops):
            x = Net.layer(self, i, hop, x)
        return x


@pytest.fixture(autouse=True)
def users() -> Iterator[types.ModuleType]:
    """The user's module."""
    module = types.ModuleType("users")
    module.Net, module.Whole = Net, Whole  # type: ignore[attr-defined]
    sys.modules["users"] = module
    yield module
    del sys.modules["users"]


def batch_of(graph: Graph) -> Batch:
    return Batch(1, 0, graph.train, torch.ones(graph.train.numel()), graph.train.numel(), graph.train)


def loss_of(objective: OwnNodeClassification, graph: Graph) -> Tensor:
    batch = batch_of(graph)
    return objective.loss(batch, objective.prepare(batch))


@pytest.mark.parametrize("kind", LAYERS)
def test_pygs_convolutions_match_the_whole_graph(
    random_graph: MakeGraph, lone_task: Task, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(own_inference, "_MOST_EDGES", 40)  # many pieces
    graph = random_graph()
    objective = OwnNodeClassification(graph, replace(TRAIN, options={"kind": kind}), lone_task)
    model = objective.model
    targets = torch.arange(graph.num_nodes).repeat_interleave(graph.degree)
    edges, x = torch.stack([graph.indices.long(), targets]), graph.x
    with torch.no_grad():
        expected = model.convolutions[1]((hidden := model.convolutions[0]((x, x), edges).relu(), hidden), edges)  # type: ignore[operator, index]
    loss = nn.functional.cross_entropy(expected[graph.train], graph.y[graph.train])
    torch.testing.assert_close(loss_of(objective, graph).detach(), loss, rtol=0, atol=1e-12)
    correct = {split: int((expected.argmax(1) == graph.y)[getattr(graph, split)].sum()) for split in ("val", "test")}
    for kept in (
        objective,
        OwnNodeClassification(graph, replace(TRAIN, model="users:Whole", options={"kind": kind}), lone_task),
    ):
        assert {split: score.correct for split, score in kept.evaluate(("val", "test")).items()} == correct


@pytest.mark.parametrize("most_targets", [None, 2])
def test_a_hop_of_all_edges_has_its_targets_first_and_each_edge_once(
    random_graph: MakeGraph, most_targets: int | None
) -> None:
    graph = random_graph()
    seen = []
    for hop in whole_hops(graph, range(5, 47), 30, most_targets):
        assert hop.edge_index.size(1) <= 30 or hop.targets == 1
        assert hop.targets <= (most_targets or 42)
        assert len(hop.nodes) == len(hop.nodes.unique())
        seen.append(hop.nodes[hop.edge_index])
    targets = torch.arange(graph.num_nodes).repeat_interleave(graph.degree)
    inside = (targets >= 5) & (targets < 47)
    assert torch.equal(torch.cat(seen, 1), torch.stack([graph.indices.long(), targets])[:, inside])


def test_dropout_is_reproducible_for_a_node_and_step(random_graph: MakeGraph, lone_task: Task) -> None:
    graph = random_graph()
    objective = OwnNodeClassification(graph, replace(TRAIN, options={"dropout": 0.5}), lone_task)
    objective.model.train()
    first, again = loss_of(objective, graph), loss_of(objective, graph)
    assert first == again
    assert objective.evaluate(("val",)) == objective.evaluate(("val",))


def wrong(users: types.ModuleType, graph: Graph, task: Task, net: Any, **options: Any) -> TaskError:
    users.Net = net  # type: ignore[attr-defined]
    with pytest.raises(TaskError) as caught:
        loss_of(OwnNodeClassification(graph, replace(TRAIN, options=options), task), graph)
    return caught.value


def test_a_wrong_model_is_reported_with_its_layer(
    users: types.ModuleType, random_graph: MakeGraph, lone_task: Task
) -> None:
    graph = random_graph()

    class TooWide(Net):
        def layer(self, i: int, hop: Hop, x: Tensor) -> Tensor:
            return torch.cat([super().layer(i, hop, x)] * (1 + i), 1)

    class TooMany(Net):
        def layer(self, i: int, hop: Hop, x: Tensor) -> Tensor:
            return x

    class Fails(Net):
        def layer(self, i: int, hop: Hop, x: Tensor) -> Tensor:
            return super().layer(0, hop, x)

    class Breaks(Net):
        def layer(self, i: int, hop: Hop, x: Tensor) -> Tensor:
            return super().layer(i, hop, x) / (0 if i else 1)

    assert (
        "layer 1 gives a tensor [30, 6], where a row for each of 30 targets"
        in wrong(users, graph, lone_task, TooWide).message
    )
    assert "layer 0 gives a tensor" in wrong(users, graph, lone_task, TooMany).message
    assert "layer 1 fails on x [" in wrong(users, graph, lone_task, Fails).message
    assert "layer 1 of users:Net gives NaN or infinity" in wrong(users, graph, lone_task, Breaks).message
    assert "cannot be made: " in wrong(users, graph, lone_task, Net, width=3).message
    assert "returned int, not a torch.nn.Module" in wrong(users, graph, lone_task, lambda *_: 3).message
    assert "nothing to train" in wrong(users, graph, lone_task, lambda *_: nn.Identity()).message
    del users.Net  # type: ignore[attr-defined]
    with pytest.raises(TaskError, match="users has no Net"):
        OwnNodeClassification(graph, TRAIN, lone_task)
    with pytest.raises(TaskError, match="there is no module nobody"):
        OwnNodeClassification(graph, replace(TRAIN, model="nobody:Net"), lone_task)


def test_options_come_from_the_models_dataclass(
    users: types.ModuleType, random_graph: MakeGraph, lone_task: Task
) -> None:
    class Chosen(Net):
        @dataclass
        class Options:
            heads: int = 1
            slope: float = 0.5

        def __init__(self, features: int, classes: int, options: Options) -> None:
            super().__init__(features, classes)
            self.options = options

    users.Net = Chosen  # type: ignore[attr-defined]
    graph = random_graph()
    objective = OwnNodeClassification(graph, replace(TRAIN, options={"heads": 3}), lone_task)
    assert objective.model.options == Chosen.Options(3)
    error = wrong(users, graph, lone_task, Chosen, head=3, slope="x")
    assert "train.options.head: unknown key (did you mean heads?)" in error.message
    assert "train.options.slope: expected a number, not 'x'" in error.message


def test_unused_parameters_are_reported(
    users: types.ModuleType, random_graph: MakeGraph, lone_task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    class Spare(Net):
        def __init__(self, features: int, classes: int) -> None:
            super().__init__(features, classes)
            self.spare = nn.Linear(2, 2)

    users.Net = Spare  # type: ignore[attr-defined]
    graph = random_graph()
    objective = OwnNodeClassification(graph, TRAIN, lone_task)
    for _ in range(3):
        loss_of(objective, graph).backward()  # type: ignore[no-untyped-call]
    assert capsys.readouterr().out == "users:Net: no loss depends on spare.bias, spare.weight\n"
