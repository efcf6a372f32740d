"""The user's own models: their inputs, their results, and the errors for wrong ones."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.own_nets import Gcn
from torch import Tensor, nn
from torch_geometric import nn as pyg

from clusterctl.engine.graph.features.arrangement import renumbered
from clusterctl.engine.graph.hops import Hop, whole_hops
from clusterctl.engine.graph.storage import Graph, load, save
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import Batch
from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
from clusterctl.engine.training.own import inference as own_inference
from clusterctl.shared.errors import TaskError
from clusterctl.shared.spec import NodeClassificationTrain

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


@pytest.mark.parametrize("by_neighbours", [False, True])
def test_the_guides_gcn_is_pygs_on_the_whole_graph(
    users: types.ModuleType,
    random_graph: MakeGraph,
    lone_task: Task,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    by_neighbours: bool,
) -> None:
    monkeypatch.setattr(own_inference, "_MOST_EDGES", 40)  # many pieces
    users.Net = Gcn  # type: ignore[attr-defined]
    given = random_graph()
    order = torch.randperm(given.num_nodes)
    graph = renumbered(given, order, given.x.dtype, tmp_path) if by_neighbours else given
    objective = OwnNodeClassification(graph, TRAIN, lone_task)
    theirs = pyg.GCN(7, 16, 2, 3).double()
    state = {f"convs.{('first', 'last').index(name.split('.')[0])}.{name.partition('.')[2]}": value
             for name, value in objective.model.state_dict().items()}  # fmt: skip
    theirs.load_state_dict(state)
    targets = torch.arange(given.num_nodes).repeat_interleave(given.degree)
    with torch.no_grad():
        expected = theirs(given.x, torch.stack([given.indices.long(), targets]))
        ours = objective._inference.rows(range(given.num_nodes))
    torch.testing.assert_close(ours, expected[order] if by_neighbours else expected, rtol=0, atol=1e-12)
    loss = nn.functional.cross_entropy(expected[given.train], given.y[given.train])
    torch.testing.assert_close(loss_of(objective, graph).detach(), loss, rtol=0, atol=1e-12)


class SlicedGcn(Net):
    """As one writes it with GCNConv: right on a whole graph, wrong on a piece."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.convolutions = nn.ModuleList([pyg.GCNConv(features, WIDTH), pyg.GCNConv(WIDTH, classes)])

    def layer(self, i: int, hop: Hop, x: Tensor) -> Tensor:
        return self.convolutions[i](x, hop.edge_index)[: hop.targets]  # type: ignore[no-any-return]


class Normalized(Net):
    def layer(self, i: int, hop: Hop, x: Tensor) -> Tensor:
        x = super().layer(i, hop, x)
        return pyg.PairNorm()(x) if i == 1 else x  # type: ignore[no-any-return]


class BatchNorm(Net):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, classes)
        self.norm = nn.BatchNorm1d(WIDTH)

    def layer(self, i: int, hop: Hop, x: Tensor) -> Tensor:
        x = super().layer(i, hop, x)
        return self.norm(x) if i == 0 else x  # type: ignore[no-any-return]


class WholeSlicedGcn(Whole, SlicedGcn):
    def forward(self, hops: list[Hop], x: Tensor) -> Tensor:
        for i, hop in enumerate(hops):
            x = SlicedGcn.layer(self, i, hop, x)
        return x


@pytest.mark.parametrize(
    ("net", "part"),
    [
        (SlicedGcn, "layer "), (Normalized, "layer 1"), (WholeSlicedGcn, "forward"),
        (Net, ""), (Gcn, ""), (BatchNorm, ""), (Whole, ""),
    ],
)  # fmt: skip
def test_a_model_whose_pieces_differ_from_the_whole_graph_is_named_in_one_line(
    users: types.ModuleType,
    random_graph: MakeGraph,
    lone_task: Task,
    capsys: pytest.CaptureFixture[str],
    net: type[nn.Module],
    part: str,
) -> None:
    users.Net = net  # type: ignore[attr-defined]
    torch.manual_seed(5)
    objective = OwnNodeClassification(random_graph(), TRAIN, lone_task)
    assert objective.model.training
    lines = [line for line in capsys.readouterr().out.splitlines() if "has no layer" not in line]
    assert [f"the outputs of {part}" in line for line in lines] == [True] * bool(part)


def test_nodes_have_the_users_numbers_in_any_order_of_the_prepared_graph(
    users: types.ModuleType, random_graph: MakeGraph, lone_task: Task, tmp_path: Path
) -> None:
    class Table(Net):
        def __init__(self, features: int, classes: int) -> None:
            super().__init__(features, classes)
            self.table = nn.Embedding(60, features)

        def layer(self, i: int, hop: Hop, x: Tensor) -> Tensor:
            return super().layer(i, hop, hop.dropout(x + self.table(hop.nodes), 0.5) if i == 0 else x)

    users.Net = Table  # type: ignore[attr-defined]
    given = random_graph()
    order = torch.randperm(given.num_nodes)
    save(renumbered(given, order, given.x.dtype, tmp_path), tmp_path / "graph.pt")
    graph = load(Graph, tmp_path / "graph.pt")
    losses, rows = [], []
    for one in (given, graph):
        objective = OwnNodeClassification(one, TRAIN, lone_task)
        losses.append(loss_of(objective, one).detach())
        objective.model.eval()
        with torch.no_grad():
            rows.append(objective._inference.rows(range(given.num_nodes)))
    torch.testing.assert_close(losses[1], losses[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(rows[1], rows[0][order], rtol=0, atol=1e-12)


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

    class Asserts(Net):
        def layer(self, i: int, hop: Hop, x: Tensor) -> Tensor:
            assert i == 0
            return super().layer(i, hop, x)

    class Misnames(Whole):
        def forward(self, hops: list[Hop], x: Tensor) -> Tensor:
            return {}["missing"]  # type: ignore[no-any-return]

    class Refuses(Net):
        def __init__(self, features: int, classes: int) -> None:
            raise ValueError("no such width")

    class Lazy(Net):
        def __init__(self, features: int, classes: int) -> None:
            super().__init__(features, classes)
            self.convolutions[1] = pyg.SAGEConv(-1, classes)

    assert "layer 1 fails on x [" in (message := wrong(users, graph, lone_task, Asserts).message)
    assert "AssertionError: assert 1 == 0 (test_own_model.py, line " in message
    assert "forward fails on 2 hops" in (message := wrong(users, graph, lone_task, Misnames).message)
    assert "KeyError: 'missing' (test_own_model.py, line " in message
    assert "users:Net cannot be made: no such width (test" in wrong(users, graph, lone_task, Refuses).message
    assert "lazy layers, whose" in (message := wrong(users, graph, lone_task, Lazy).message)
    assert "convolutions.1.lin_l.weight" in message
    assert "layer 0 gives a tensor" in wrong(users, graph, lone_task, TooMany).message
    assert "layer 1 fails on x [" in wrong(users, graph, lone_task, Fails).message
    assert "layer 1 of users:Net gives NaN or infinity" in wrong(users, graph, lone_task, Breaks).message
    spoilt = replace(graph, x=graph.x / 0)
    error = wrong(users, spoilt, lone_task, Net)
    assert "the features x of the data have NaN or infinity" in error.message
    assert "train.lr" not in str(error.hint)
    assert "train.options.width: users:Net has no such argument" in wrong(users, graph, lone_task, Net, width=3).message
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
