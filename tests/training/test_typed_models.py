"""Own models on several types of nodes and edges, unchanged: exact outputs, embeddings, times, clear errors."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from support.made_graphs import AUTHOR, CITES, INSTITUTE, PAPER, bare_academy, random_academy
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import (
    GAT,
    GCN,
    FiLMConv,
    GATConv,
    GATv2Conv,
    GINConv,
    GraphConv,
    HeteroConv,
    HeteroDictLinear,
    HGTConv,
    RGCNConv,
    SAGEConv,
    to_hetero,
    to_hetero_with_bases,
)

from clusterctl.engine.data.igb import read_raw, write
from clusterctl.engine.data.own_relations import relations_of
from clusterctl.engine.graph.embeddings import whole_weights
from clusterctl.engine.graph.features.arrangement import arranged
from clusterctl.engine.graph.storage import LabelledHeteroGraph, Recipe, shared
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import Batch
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
from clusterctl.engine.training.objectives.relation import RelationNodeClassification
from clusterctl.engine.training.objectives.typed_node import TypedNodeClassification
from clusterctl.engine.training.own import pyg_inference
from clusterctl.pyg import dropout
from clusterctl.shared.errors import TaskError
from clusterctl.shared.spec import NodeClassificationTrain

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "pyg"
MODELS = {"rgcn": "rgcn:RGCN", "hgt": "hgt:HGT", "to_hetero": "to_hetero_sage:make"}
TRAIN = NodeClassificationTrain(
    model="users:Net", options={"hidden_channels": 8}, fan_out=(-1, -1), precision="float64", embedding_width=5
)
Objective = TypedNodeClassification
pytestmark = pytest.mark.filterwarnings("ignore:There exist node types")  # of PyG: no relation leads to institutes


@pytest.fixture(autouse=True)
def users(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """The user's module, beside the examples."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    module = types.ModuleType("users")
    module.Net = Net  # type: ignore[attr-defined]
    sys.modules["users"] = module
    yield module
    for name in ("users", "rgcn", "hgt", "to_hetero_sage", "shop", "academy"):
        sys.modules.pop(name, None)


class Net(nn.Module):
    """Two layers of means, one for each relation."""

    def __init__(self, metadata: Any, out_channels: int, hidden_channels: int = 8) -> None:
        super().__init__()
        kinds, relations = metadata
        self.encode = nn.ModuleDict({kind: nn.LazyLinear(hidden_channels) for kind in kinds})
        self.convs = nn.ModuleList(
            HeteroConv({relation: SAGEConv(hidden_channels, hidden_channels) for relation in relations})
            for _ in range(2)
        )
        self.head = nn.Linear(hidden_channels, out_channels)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: Any) -> Any:
        x = {kind: self.encode[kind](rows) for kind, rows in x_dict.items()}
        for conv in self.convs:
            x = {**x, **{kind: self.between(rows) for kind, rows in conv(x, edge_index_dict).items()}}
        return self.head(x[PAPER])

    def between(self, rows: Tensor) -> Tensor:
        return rows.relu()


@pytest.fixture(scope="module")
def igb(tmp_path_factory: pytest.TempPathFactory) -> LabelledHeteroGraph:
    """Generated data like IGB-heterogeneous."""
    root = tmp_path_factory.mktemp("igb")
    write(root, 4e-7, 0)
    graph = read_raw(root, root)
    return replace(graph, x={kind: x.double() for kind, x in graph.x.items()})


def outputs_of(objective: Objective) -> Tensor:
    """The outputs of all examples."""
    objective.model.eval()
    objective._rows.begin_evaluation()
    examples = torch.arange(len(objective._graph.y))
    rows: list[Any] = [None] * len(examples)
    with torch.no_grad():
        for some, own in objective._outputs(examples):
            for example, row in zip(some.tolist(), own, strict=True):
                rows[example] = row
    return torch.stack(rows)


def loss_of(objective: Objective) -> Tensor:
    seeds = objective.seeds
    batch = Batch(1, 0, seeds, torch.ones(seeds.numel()), seeds.numel(), seeds)
    return objective.loss(batch, objective.prepare(batch))


def by_pyg(objective: Objective, graph: LabelledHeteroGraph) -> Tensor:
    """The outputs for all papers of a plain call on the whole graph."""
    model, x = objective._own.model.eval(), dict(graph.x)
    if objective._rows._embeddings is not None:
        every = {kind: torch.arange(count) for kind, count in graph.num_nodes.items()}
        with torch.no_grad():
            x |= objective._rows._embeddings.rows(objective._rows._embeddings.wanted(every))
    edges = {relation: graph.relation(relation).edge_index for relation in graph.indptr}
    with torch.no_grad():
        rows = model({kind: x[kind] for kind in graph.num_nodes}, edges)
    return rows[PAPER] if isinstance(rows, dict) else rows  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_losses_are_those_of_pyg_on_the_whole_graph(
    name: str, igb: LabelledHeteroGraph, lone_task: Task, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    train = replace(TRAIN, model=MODELS[name])
    objective = TypedNodeClassification(igb, train, lone_task)
    expected = by_pyg(objective, igb)
    torch.testing.assert_close(outputs_of(objective), expected, rtol=0, atol=1e-9)
    assert "is evaluated on the whole graph at once" in capfd.readouterr().out
    loss = F.cross_entropy(expected[igb.train], igb.y[igb.train])
    torch.testing.assert_close(loss_of(objective).detach(), loss, rtol=0, atol=1e-9)
    monkeypatch.setattr(pyg_inference.PygInference, "_planned", lambda *_: (2, 1.0, 1.0))
    pieces = TypedNodeClassification(igb, train, lone_task)
    pieces.model.load_state_dict(objective.model.state_dict())
    torch.testing.assert_close(outputs_of(pieces), expected, rtol=0, atol=1e-9)


class OneLayer(nn.Module):
    """A lazy linear map of each type, one of PyG's heterogeneous layers, and a head."""

    def __init__(self, layer: Any, metadata: Any, out_channels: int) -> None:
        super().__init__()
        self.encode = HeteroDictLinear(-1, 8, types=metadata[0])
        self.conv, self.head = layer(metadata), nn.Linear(8, out_channels)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: Any) -> Tensor:
        x = {kind: rows.relu() for kind, rows in self.encode(x_dict).items()}
        out: Tensor = self.head(self.conv(x, edge_index_dict)[PAPER])
        return out


class Joined(nn.Module):
    """A relational layer for one type, on all types joined."""

    def __init__(self, metadata: Any) -> None:
        super().__init__()
        self.kinds, self.relations = metadata
        self.conv = RGCNConv(8, 8, len(self.relations))

    def forward(self, x: dict[str, Tensor], edges: Any) -> dict[str, Tensor]:
        begins = dict(
            zip(self.kinds, torch.tensor([0] + [len(x[kind]) for kind in self.kinds]).cumsum(0), strict=False)
        )
        ends = [edges[one] + torch.stack([begins[one[0]], begins[one[2]]])[:, None] for one in self.relations]
        types = torch.arange(len(ends)).repeat_interleave(torch.tensor([one.size(1) for one in ends]))
        rows = self.conv(torch.cat([x[kind] for kind in self.kinds]), torch.cat(ends, 1), types)
        return {kind: rows[begins[kind] : begins[kind] + len(x[kind])] for kind in self.kinds}


class Twice(nn.Module):
    """For `to_hetero_with_bases`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = SAGEConv((8, 8), 8), SAGEConv((8, 8), 8)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(x, edge_index).relu(), edge_index)
        return out


FORMS: dict[str, Any] = {
    "GATConv": lambda of: HeteroConv({one: GATConv((8, 8), 8, add_self_loops=False) for one in of[1]}, aggr="mean"),
    "two kinds": lambda of: HeteroConv(
        {one: FiLMConv((8, 8), 8) if one[0] == PAPER else GraphConv((8, 8), 8) for one in of[1]}
    ),
    "GINConv": lambda of: HeteroConv({one: GINConv(nn.Linear(8, 8)) for one in of[1]}),
    "HGTConv": lambda of: HGTConv(8, 8, of, heads=2),
    "RGCNConv": Joined,
    "to_hetero": lambda of: to_hetero(GAT((-1, -1), 8, num_layers=2, heads=2, add_self_loops=False), of),
    "to_hetero_with_bases": lambda of: to_hetero_with_bases(Twice(), of, num_bases=3, in_channels={"x": 8}),
}


@pytest.mark.parametrize("form", FORMS)
def test_pygs_layers_give_what_they_give_on_the_whole_graph(form: str, users: Any, lone_task: Task) -> None:
    users.Net = partial(OneLayer, FORMS[form])
    graph = relations_of(import_module("academy").load(), "load")
    graph = replace(graph, x={kind: x.double() for kind, x in graph.x.items()})
    objective = TypedNodeClassification(graph, replace(TRAIN, options={}), lone_task)
    expected = by_pyg(objective, graph)
    torch.testing.assert_close(outputs_of(objective), expected, rtol=0, atol=1e-9)
    loss = F.cross_entropy(expected[graph.train], graph.y[graph.train])
    torch.testing.assert_close(loss_of(objective).detach(), loss, rtol=0, atol=1e-9)


class Weighted(nn.Module):
    """Two layers that use numbers of edges: attention with `edge_attr`, and sums weighted by `edge_weight`."""

    def __init__(self, metadata: Any, out_channels: int) -> None:
        super().__init__()
        kinds, relations = metadata
        self.encode = HeteroDictLinear(-1, 8, types=kinds)
        of_papers = [one for one in relations if one[2] == PAPER]
        self.first = HeteroConv({one: GATv2Conv((8, 8), 8, edge_dim=3, add_self_loops=False) for one in relations})
        self.last = HeteroConv({one: GraphConv((8, 8), out_channels) for one in of_papers})

    def forward(self, x_dict: Any, edge_index_dict: Any, edge_attr_dict: Any, edge_weight_dict: Any) -> Any:
        assert {*edge_weight_dict} == {CITES}
        weights = {
            one: edge_weight_dict.get(one, torch.ones(own.size(1), dtype=torch.float64))
            for one, own in edge_index_dict.items()
        }
        x = self.encode(x_dict)
        x = {**x, **self.first(x, edge_index_dict, edge_attr_dict)}
        return self.last(x, edge_index_dict, weights)


class OfOneType(nn.Module):
    """For `to_hetero`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GATv2Conv((-1, -1), 4, edge_dim=3, add_self_loops=False)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        out: Tensor = self.conv(x, edge_index, edge_attr)
        return out


class WeightedData(Weighted):
    def forward(self, data: Any) -> Any:  # type: ignore[override]
        return super().forward(data.x_dict, data.edge_index_dict, data.edge_attr_dict, data.edge_weight_dict)


def with_attributes(data: Any) -> Any:
    """Repeated edges, and numbers of edges, which are in no order."""
    made = torch.Generator().manual_seed(5)
    for relation in data.edge_types:
        edges = data[relation].edge_index
        edges = torch.cat([edges, edges[:, ::3]], 1)
        data[relation].edge_index = edges[:, torch.randperm(edges.size(1), generator=made)]
        data[relation].edge_attr = torch.randn(edges.size(1), 3, generator=made)
    data[CITES].edge_weight = torch.rand(data[CITES].edge_index.size(1), generator=made)
    return data


def test_numbers_of_edges_reach_a_model_as_in_pyg(users: Any, lone_task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    data = with_attributes(import_module("academy").load())
    graph = relations_of(data, "load")
    graph = replace(graph, x={kind: x.double() for kind, x in graph.x.items()})
    for model, hops in ((Weighted, 0), (WeightedData, 0), (Weighted, 2)):
        users.Net = model
        if hops:
            monkeypatch.setattr(pyg_inference.PygInference, "_planned", lambda *_: (2, 1.0, 1.0))
        objective = TypedNodeClassification(graph, replace(TRAIN, options={}), lone_task)
        with torch.no_grad():
            plain = objective._own.model.eval()
            every = {kind: torch.arange(count) for kind, count in graph.num_nodes.items()}
            expected = Weighted.forward(
                plain,  # type: ignore[arg-type]
                objective._rows.of_step(objective._rows.asked([], every), None),
                data.edge_index_dict,
                {one: own.double() for one, own in data.edge_attr_dict.items()},
                {CITES: data[CITES].edge_weight.double()},
            )[PAPER]
        torch.testing.assert_close(outputs_of(objective), expected, rtol=0, atol=1e-9)
        loss = F.cross_entropy(expected[graph.train], graph.y[graph.train])
        torch.testing.assert_close(loss_of(objective).detach(), loss, rtol=0, atol=1e-9)


def test_numbers_of_edges_reach_a_model_of_to_hetero(users: Any, lone_task: Task) -> None:
    data = with_attributes(import_module("academy").load())
    del data["institute"], data["author", "works_at", "institute"], data["institute", "rev_works_at", "author"]
    graph = relations_of(data, "load")
    graph = replace(graph, x={kind: x.double() for kind, x in graph.x.items()})
    users.make = lambda metadata: to_hetero(OfOneType(), metadata)
    objective = TypedNodeClassification(graph, replace(TRAIN, model="users:make", options={}), lone_task)
    model = objective._own.model.eval()
    attributes = {one: own.double() for one, own in data.edge_attr_dict.items()}
    with torch.no_grad():
        expected = model(graph.x, data.edge_index_dict, attributes)[PAPER]
    torch.testing.assert_close(outputs_of(objective), expected, rtol=0, atol=1e-9)


def test_numbers_of_edges_that_a_model_does_not_take_are_named(users: Any, lone_task: Task, capsys: Any) -> None:
    graph = relations_of(with_attributes(import_module("academy").load()), "load")
    objective = TypedNodeClassification(graph, replace(TRAIN, precision="float32"), lone_task)
    assert "users:Net does not take edge_weight_dict and edge_attr_dict: not used" in capsys.readouterr().out
    assert not objective._graph.edge_attr
    RelationNodeClassification(graph, replace(TRAIN, model="rgat", options={}, precision="float32"), lone_task)
    assert 'model "rgat" does not take edge_weight and edge_attr: not used' in capsys.readouterr().out
    users.Net = Weighted
    message = "forward needs edge_weight_dict, and no type of edges has edge_weight"
    assert message in refused(replace(graph, edge_weight={}), replace(TRAIN, options={}), lone_task)


def test_how_many_hops_outputs_depend_on_is_found_out(
    lone_task: Task, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = random_academy()
    few = {kind: graph.num_nodes[kind] for kind in graph.num_nodes}
    whole = sum(few.values())
    of = pyg_inference.Need.of
    monkeypatch.setattr(
        pyg_inference.Need, "of", lambda self, rows, edges: 1 << 50 if rows == whole else of(self, rows, edges)
    )
    objective = TypedNodeClassification(graph, replace(TRAIN, fan_out=(4,)), lone_task)
    assert "is evaluated in pieces of 2 hops" in capsys.readouterr().out
    torch.testing.assert_close(outputs_of(objective), by_pyg(objective, graph), rtol=0, atol=1e-9)


@pytest.mark.parametrize("bare", [(INSTITUTE,), (AUTHOR, INSTITUTE), (PAPER, AUTHOR, INSTITUTE)])
def test_embeddings_are_learned_for_types_without_features(bare: tuple[str, ...], lone_task: Task, capfd: Any) -> None:
    graph = bare_academy(*bare)
    train = replace(TRAIN, fan_out=(4, 3), epochs=6, batch_size=10, lr=0.02)
    objective = TypedNodeClassification(graph, train, lone_task)
    before = objective._rows._embeddings.table.rows.clone()  # type: ignore[union-attr]
    fit(objective, train, lone_task)
    assert f"{', '.join(bare)} without features x: embeddings of width 5" in capfd.readouterr().out
    after = objective._rows._embeddings.table.rows  # type: ignore[union-attr]
    assert (after != before).any(1).float().mean() > 0.5
    torch.testing.assert_close(outputs_of(objective), by_pyg(objective, graph), rtol=0, atol=1e-9)
    weights = whole_weights(objective.model)
    assert torch.equal(weights["embeddings.table.rows"], after)
    Net(([*graph.num_nodes], [*graph.indptr]), 3).load_state_dict(weights, strict=False)  # the model's own names
    assert "head.weight" in weights


def test_embeddings_get_the_gradients_of_plain_ones(lone_task: Task) -> None:
    graph = bare_academy(AUTHOR)
    objective = TypedNodeClassification(graph, TRAIN, lone_task)
    embeddings = objective._rows._embeddings
    assert embeddings is not None
    loss_of(objective).backward()
    touched, gradients = embeddings.table.collect()
    rows = embeddings.table.rows.clone().requires_grad_()
    edges = {relation: graph.relation(relation).edge_index for relation in graph.indptr}
    x = {PAPER: graph.x[PAPER], AUTHOR: rows, INSTITUTE: graph.x[INSTITUTE]}
    F.cross_entropy(objective._own.model(x, edges)[graph.train], graph.y[graph.train]).backward()
    assert rows.grad is not None
    torch.testing.assert_close(rows.grad[touched], gradients, rtol=0, atol=1e-12)
    assert not rows.grad[torch.isin(torch.arange(len(rows)), touched, invert=True)].any()


def test_rgat_learns_embeddings_too(lone_task: Task) -> None:
    graph = bare_academy(AUTHOR)
    train = replace(
        TRAIN, model="rgat", options={"hidden": 4, "heads": 2, "dropout": 0.0}, epochs=8, lr=0.02, batch_size=10
    )
    objective = RelationNodeClassification(graph, train, lone_task)
    seeds = graph.train
    batch = Batch(1, 0, seeds, torch.ones(len(seeds)), len(seeds), seeds)
    before = float(objective.loss(batch, objective.prepare(batch)).detach())
    objective._embeddings.table.collect()  # type: ignore[union-attr]
    score = fit(objective, train, lone_task)
    assert float(objective.loss(batch, objective.prepare(batch)).detach()) < before / 2
    full = objective._graph.x | {
        kind: features.table
        for kind, features in objective._embeddings.of_all(lone_task, torch.float64).items()  # type: ignore[union-attr]
    }
    with_features = RelationNodeClassification(replace(graph, x=full), train, lone_task)
    with_features.model.load_state_dict(objective._network.state_dict())
    assert with_features.evaluate(("test",))["test"] == score


def test_empty_relations_and_types_without_edges_change_nothing(lone_task: Task) -> None:
    """The outputs and losses are PyG's; the log names both."""
    data = import_module("academy").load()
    data["paper", "retracts", "paper"].edge_index = torch.empty(2, 0, dtype=torch.int64)
    data["venue"].x = torch.randn(3, 2)
    graph = relations_of(data, "load", notes := [])
    assert notes == [
        "there are no edges of type paper, retracts, paper",
        "no type of edges has nodes of type venue: they are not used",
    ]
    graph = replace(graph, x={kind: x.double() for kind, x in graph.x.items()})
    objective = TypedNodeClassification(graph, TRAIN, lone_task)
    expected = by_pyg(objective, graph)
    torch.testing.assert_close(outputs_of(objective), expected, rtol=0, atol=1e-9)
    loss = F.cross_entropy(expected[graph.train], graph.y[graph.train])
    torch.testing.assert_close(loss_of(objective).detach(), loss, rtol=0, atol=1e-9)


class Keyed(Net):
    """With dropout of all types by node."""

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: Any) -> Any:
        return super().forward(dropout(x_dict, 0.5, self.training), edge_index_dict)


def test_dropout_of_a_dict_is_by_node_and_depends_on_the_step(users: Any, lone_task: Task, capsys: Any) -> None:
    users.Net = Keyed
    graph = random_academy()
    objective = TypedNodeClassification(graph, TRAIN, lone_task)
    assert "draws random numbers" not in capsys.readouterr().out
    losses = [float(loss_of(objective).detach()) for _ in range(2)]
    assert losses[0] == losses[1]
    assert losses[0] != float(F.cross_entropy(by_pyg(objective, graph)[graph.train], graph.y[graph.train]))
    objective.model.train()
    seeds, parts = graph.train, []
    for some in seeds.split(7):
        batch = Batch(1, 0, some, torch.ones(len(some)), len(seeds), seeds)
        parts.append(float(objective.loss(batch, objective.prepare(batch)).detach()))
    assert sum(parts) == pytest.approx(losses[0], abs=1e-12)  # whichever rank has a seed


class Attending(Net):
    """Weighs the relations by a mean over all rows, as HANConv does."""

    def between(self, rows: Tensor) -> Tensor:
        return rows * rows.mean().tanh()


@pytest.mark.parametrize("net", [Net, Attending])
def test_outputs_that_depend_on_the_rest_of_the_batch_are_named(
    net: type, users: Any, lone_task: Task, capsys: Any
) -> None:
    users.Net = net
    TypedNodeClassification(random_academy(), TRAIN, lone_task)
    words = "users:Net: the output of a seed depends on the other seeds of its batch"
    assert (words in capsys.readouterr().out) == (net is Attending)


# Times.


def shop(rows: int) -> tuple[LabelledHeteroGraph, Any]:
    data = import_module("shop").load()
    store = data["customer"]
    for name in ("seed_index", "seed_time", "y", "train_mask", "val_mask", "test_mask"):
        store[name] = store[name][:rows]
    return relations_of(data, "shop"), data


@pytest.mark.parametrize("strategy", ["uniform", "last"])
def test_examples_are_evaluated_on_what_they_see(strategy: str, lone_task: Task) -> None:
    graph, data = shop(60)
    fan_out = (3, 1) if strategy == "last" else (2, 2)
    train = replace(TRAIN, model="shop:Net", temporal_strategy=strategy, fan_out=fan_out, batch_size=7)
    objective = TypedNodeClassification(graph, train, lone_task)
    rows = outputs_of(objective)
    model = objective._own.model
    x = {kind: data[kind].x.double() for kind in data.node_types}
    for row in range(0, 60, 7):  # what a plain call gives on the past of each
        customer, time = int(graph.nodes_of(torch.tensor([row]))), int(data["customer"].seed_time[row])
        past = data["purchase"].time <= time
        edges = {relation: data[relation].edge_index for relation in data.edge_types}
        to_purchase = edges["purchase", "of_customer", "customer"]
        chosen = past & torch.isin(torch.arange(len(past)), to_purchase[0][to_purchase[1] == customer])
        if strategy == "last":
            latest = data["purchase"].time.where(chosen, -1).topk(3).indices
            chosen = chosen & torch.isin(torch.arange(len(past)), latest)
        kept = {}
        for relation, ends in edges.items():
            side = 0 if relation[0] == "purchase" else 1
            kept[relation] = ends[:, (chosen if "customer" in relation else past)[ends[side]]]
        with torch.no_grad():
            expected = model(x, kept)[customer]
        torch.testing.assert_close(rows[row], expected, rtol=0, atol=1e-9)


def test_the_best_score_is_reached_and_not_exceeded(lone_task: Task) -> None:
    graph, _ = shop(3000)
    best = import_module("shop").BEST
    train = NodeClassificationTrain(
        model="shop:Net", temporal_strategy="last", fan_out=(3, 1), epochs=2, batch_size=50, lr=0.01
    )
    score = fit(TypedNodeClassification(graph, train, lone_task), train, lone_task)
    spread = 3 * (best * (1 - best) / score.total) ** 0.5
    assert abs(score.value - best) < spread
    assert score.total == len(graph.test)


class Aware(Net):
    """Uses all that a forward may name on data with times."""

    def forward(  # type: ignore[override]
        self,
        x_dict: Any,
        edge_index_dict: Any,
        n_id_dict: Any,
        batch_dict: Any,
        time_dict: Any,
        seed_time: Any,
        batch_size: int,
        num_sampled_nodes_dict: Any,
        num_sampled_edges_dict: Any,
    ) -> Any:
        assert len(seed_time) == batch_size <= len(x_dict["customer"])
        for kind, rows in x_dict.items():
            assert len(n_id_dict[kind]) == len(batch_dict[kind]) == len(rows) == sum(num_sampled_nodes_dict[kind])
        for relation, edges in edge_index_dict.items():
            assert edges.size(1) == sum(num_sampled_edges_dict[relation])
        age = seed_time[batch_dict["purchase"]] - time_dict["purchase"]
        assert (age >= 0).all()
        x_dict = {**x_dict, "purchase": x_dict["purchase"] + age[:, None] / 1e8}
        x = {kind: self.encode[kind](rows) for kind, rows in x_dict.items()}
        for conv in self.convs:
            x = {**x, **conv(x, edge_index_dict)}
        return self.head(x["customer"])


class TakesData(Net):
    def forward(self, data: Any) -> Any:  # type: ignore[override]
        assert len(data.seed_time) == data.batch_size == data["customer"].batch_size == len(data["customer"].seed_time)
        assert {kind: sum(own) for kind, own in data.num_sampled_nodes_dict.items()} == {
            kind: data[kind].num_nodes for kind in data.node_types
        }
        assert sum(map(sum, data.num_sampled_edges_dict.values())) == data.num_edges
        assert len(data["purchase"].time) == len(data["purchase"].batch) == data["purchase"].num_nodes
        x = {kind: self.encode[kind](rows) for kind, rows in data.x_dict.items()}
        for conv in self.convs:
            x = {**x, **conv(x, data.edge_index_dict)}
        return self.head(x["customer"])


class TakesBatch(TakesData):
    def forward(self, batch: Any) -> Any:  # type: ignore[override]
        return super().forward(batch)


class ChangesDicts(Net):
    def forward(self, x_dict: Any, edge_index_dict: Any, n_id_dict: Any, batch_dict: Any) -> Any:  # type: ignore[override]
        x = {kind: self.encode[kind](rows) for kind, rows in x_dict.items()}
        rows = self.head(self.convs[0](x, edge_index_dict)["customer"])
        for given in (x_dict, edge_index_dict, n_id_dict, batch_dict):
            given.pop(next(iter(given)))
        return rows


@pytest.mark.parametrize("model", [Aware, TakesData, TakesBatch, ChangesDicts])
def test_forward_gets_what_it_names(model: type, users: Any, lone_task: Task) -> None:
    users.Net = model
    objective = TypedNodeClassification(shop(200)[0], replace(TRAIN, fan_out=(3, 2)), lone_task)
    assert loss_of(objective).isfinite()
    assert outputs_of(objective).isfinite().all()


# Errors.


def refused(graph: LabelledHeteroGraph, train: NodeClassificationTrain, task: Task, **others: Any) -> str:
    with pytest.raises(TaskError) as caught:
        TypedNodeClassification(graph, train, task, **others)
    return f"{caught.value}\n{caught.value.hint}"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampling": "labor"}, 'train.sampling = "labor" is not supported on data with several types of nodes'),
        ({"batch": "graph"}, 'train.batch = "graph" is not supported on data with several types of nodes'),
        ({"temporal_strategy": "last"}, "train.temporal_strategy is not supported on data with no times"),
        ({"accumulate": 2}, "train.accumulate is not supported with embeddings, which are learned for institute"),
        ({"ema": 0.9}, "train.ema is not supported with embeddings"),
        ({"optimizer": "sgd"}, "train.optimizer is not supported with embeddings"),
    ],
)
def test_settings_that_have_no_effect_are_refused(settings: Any, message: str, lone_task: Task) -> None:
    assert message in refused(bare_academy(INSTITUTE), replace(TRAIN, **settings), lone_task)


def changed(forward: Any) -> type:
    return type("Changed", (Net,), {"forward": forward})


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda self, x_dict, edge_index_dict, edge_type: 0, "nobody fills edge_type"),
        (lambda self, x_dict, edge_index_dict, *rest: 0, "it is unknown what *rest takes"),
        (lambda self, x_dict, edge_index_dict, seed_time: 0, "nobody fills seed_time, since the data has no times"),
        (lambda self, x_dict, edge_index_dict: {"author": 0}, "gives rows of author\nrows of paper are wanted"),
        (lambda self, x_dict, edge_index_dict: x_dict["paper"][:1], "gives a tensor [1, 6], where a row for each of"),
        (lambda self, x, edge_index: x @ edge_index, "x and edge_index are dicts by type here"),
        (lambda self, hops, x: x, "nobody fills hops"),
    ],
)
def test_a_forward_that_cannot_be_called_is_named(forward: Any, message: str, users: Any, lone_task: Task) -> None:
    users.Net = changed(forward)
    assert message in refused(random_academy(), TRAIN, lone_task)


def test_rgat_refuses_times(lone_task: Task) -> None:
    train = replace(TRAIN, model="rgat", options={})
    with pytest.raises(TaskError, match='model "rgat" does not use the times'):
        RelationNodeClassification(shop(50)[0], train, lone_task)


def test_a_model_that_gives_nan_is_named(users: Any, lone_task: Task) -> None:
    class Broken(Net):
        def between(self, rows: Tensor) -> Tensor:
            return rows * torch.nan

    users.Net = Broken
    with pytest.raises(TaskError, match="forward of users:Net gives NaN"):
        loss_of(TypedNodeClassification(random_academy(), TRAIN, lone_task))


def test_features_on_disk_give_the_same(lone_task: Task) -> None:
    graph = shared(lone_task, LabelledHeteroGraph, "academy", {}, lambda _: bare_academy(INSTITUTE))
    train = replace(TRAIN, fan_out=(4, 3), batch_size=10, epochs=2)
    scores = [fit(TypedNodeClassification(graph, train, lone_task, cache), train, lone_task) for cache in (None, 2000)]
    assert scores[0] == scores[1]


# Models with layer(i, hop, x).


class ByLayer(Net):
    """The same model, one layer at a time."""

    def layer(self, i: int, hop: Any, x: dict[str, Tensor]) -> dict[str, Tensor]:
        if i == 0:
            x = {kind: self.encode[kind](rows) for kind, rows in hop.dropout(x, self.p).items()}
        ends = {kind: (rows, rows[: hop.targets[kind]]) for kind, rows in x.items()}
        found: dict[str, Tensor] = {kind: rows for kind, (_, rows) in ends.items() if kind == INSTITUTE}
        for relation, edges in hop.edge_index_dict.items():
            source, _, target = relation
            if source in ends and target in ends:
                part = self.convs[i].convs[relation]((ends[source][0], ends[target][1]), edges)  # type: ignore[index]
                found[target] = found[target] + part if target in found else part
        found = {kind: rows if kind == INSTITUTE else rows.relu() for kind, rows in found.items()}
        return found if i == 0 else {PAPER: self.head(found[PAPER])}

    p = 0.0


@pytest.mark.parametrize("bare", [(), (AUTHOR,)])
def test_a_model_by_layers_is_that_of_a_whole_forward(bare: tuple[str, ...], users: Any, lone_task: Task) -> None:
    graph = bare_academy(*bare)
    whole = TypedNodeClassification(graph, TRAIN, lone_task)
    users.Net = ByLayer
    objective = TypedNodeClassification(graph, TRAIN, lone_task)
    objective._own.model.load_state_dict(whole._own.model.state_dict())
    torch.testing.assert_close(outputs_of(objective), by_pyg(whole, graph), rtol=0, atol=1e-9)
    torch.testing.assert_close(loss_of(objective), loss_of(whole), rtol=0, atol=1e-9)


def test_dropout_of_a_hop_is_by_node_and_sampled_layers_train(users: Any, lone_task: Task, capsys: Any) -> None:
    users.Net = type("Dropping", (ByLayer,), {"p": 0.4})
    train = replace(TRAIN, fan_out=(3, 2), batch_size=10, epochs=15, lr=0.02)
    objective = TypedNodeClassification(random_academy(), train, lone_task)
    assert "draws random numbers" not in capsys.readouterr().out
    seeds, losses = objective.seeds, []
    for size in (30, 7):
        total = 0.0
        for some in seeds.split(size):
            batch = Batch(1, 0, some, torch.ones(len(some)), len(seeds), seeds)
            total += float(objective.loss(batch, objective.prepare(batch)).detach())
        losses.append(total)
    assert losses[0] == pytest.approx(losses[1], abs=1e-12)
    score = fit(objective, train, lone_task)
    assert score.value > 0.5


class MixesPieces(ByLayer):
    def layer(self, i: int, hop: Any, x: dict[str, Tensor]) -> dict[str, Tensor]:
        rows = super().layer(i, hop, x)
        return {kind: own - own.mean(0) for kind, own in rows.items()}


def test_layers_that_depend_on_their_piece_are_named(users: Any, lone_task: Task, capsys: Any) -> None:
    users.Net = MixesPieces
    TypedNodeClassification(random_academy(), TRAIN, lone_task)
    assert "users:Net: layer 0 gives other rows of author, paper in other pieces" in capsys.readouterr().out


def one_layer(result: Any) -> type:
    return type("Changed", (Net,), {"layer": lambda self, i, hop, x: result(hop, x) if callable(result) else result})


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (3, "layer 0 gives int\na dict of rows by node type is wanted"),
        ({}, "layer 1 gives rows of no type\nrows of paper are wanted"),
        (lambda hop, x: {PAPER: x[PAPER][:1]}, "layer 0: paper gives a tensor [1, 6]"),
        (lambda hop, x: x["shop"], "layer 0 fails on x of paper [60, 6]"),
    ],
)
def test_a_layer_that_gives_something_else_is_named(result: Any, message: str, users: Any, lone_task: Task) -> None:
    users.Net = one_layer(result)
    assert message in refused(random_academy(), TRAIN, lone_task)


def test_layers_are_refused_on_data_with_times(users: Any, lone_task: Task) -> None:
    users.Net = ByLayer
    assert "data with times needs a model with forward(x_dict, edge_index_dict)" in refused(
        shop(50)[0], TRAIN, lone_task
    )


def test_a_model_that_takes_dicts_is_refused_on_one_type(random_graph: Any, lone_task: Task) -> None:
    with pytest.raises(TaskError, match="the data has one type of nodes and edges") as caught:
        OwnNodeClassification(random_graph(), TRAIN, lone_task)
    assert "HeteroData" in caught.value.hint


def test_keys_of_several_types_are_refused_or_named_on_one_type(
    random_graph: Any, users: Any, lone_task: Task, capsys: Any
) -> None:
    users.Net = lambda in_channels, out_channels: GCN(in_channels, 4, 2, out_channels)
    train = NodeClassificationTrain(model="users:Net", embedding_width=8, precision="float64")
    OwnNodeClassification(random_graph(), train, lone_task)
    assert "train.embedding_width is not used: the data has one type of nodes" in capsys.readouterr().out
    with pytest.raises(TaskError, match="train.temporal_strategy needs HeteroData with times"):
        OwnNodeClassification(random_graph(), replace(train, temporal_strategy="last"), lone_task)
    users.Net = Net
    TypedNodeClassification(random_academy(), TRAIN, lone_task)
    assert "train.embedding_width is not used: all types of nodes" in capsys.readouterr().out


def test_graphs_of_several_types_are_not_arranged(tmp_path: Path) -> None:
    recipe = arranged(Recipe("academy", {}, lambda _: random_academy()), "neighbours", "given")  # type: ignore[arg-type]
    with pytest.raises(TaskError, match=r"data.order is not supported on several types"):
        recipe.build(tmp_path)
