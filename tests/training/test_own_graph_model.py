"""Graph classification with the user's own model: its inputs, any number of ranks, mistakes, data."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.ranks import IMDB, run_program
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Batch as PygBatch
from torch_geometric.data import Data as PygData
from torch_geometric.data import HeteroData
from torch_geometric.nn import GINConv, GINEConv, global_add_pool

from clusterctl.engine.data.graph_sets import collection_of
from clusterctl.engine.graph.collection import Collection
from clusterctl.engine.graph.storage import load, save
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import Batch
from clusterctl.engine.training.objectives import graph as graph_objective
from clusterctl.engine.training.objectives.graph import OwnGraphClassification
from clusterctl.engine.workloads.graph_classification import recipe
from clusterctl.launcher.config.resolution import contradictions
from clusterctl.pyg import dropout
from clusterctl.shared.errors import TaskError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Cluster, Data, GraphClassificationTrain, Job

TRAIN = GraphClassificationTrain(model="users:Net", features="given", precision="float64")
PROGRAM = f"""
import json
import torch_geometric  # before the ranks are forked
from dataclasses import replace
from clusterctl.engine.graph.collection import Collection
from clusterctl.engine.graph.storage import shared
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.layout import current_attempt
from clusterctl.shared.spec import Data, GraphClassificationTrain
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objectives.graph import OwnGraphClassification
from clusterctl.engine.training.progress import Fold
from clusterctl.engine.workloads.graph_classification import recipe
from support.ranks import Losses

with joined(Context({{"name": "t", "workload": "reddit"}}, attempt=current_attempt())) as task:
    results = {{}}
    data = Data(root={str(IMDB)!r}), Data(load="support.own_nets:molecules")
    for own, reading, learns in zip(data, ({{}}, {{"answers": "numbers"}}), ({{}}, {{"loss": "l1"}}), strict=True):
        graphs = shared(task, Collection, *recipe(own, reading))
        train = GraphClassificationTrain(
            model="support.own_nets:" + ("MoleculeNet" if own.load else "GraphNet"), batch_size=None,
            global_batch_size=24 if own.load else 240, epochs=3, precision="float64", lr=0.01, **learns
        )
        losses = Losses()
        objective = OwnGraphClassification(graphs, train, task, 0 if own.load else 3)
        score = fit(objective, train, replace(task, metrics=losses), None if own.load else Fold(1, 1))
        results[train.model[17:]] = [losses, score.value, score.total]
print(json.dumps(results))
"""


class Net(nn.Module):
    """Written like the models in PyG's examples."""

    def __init__(self, features: int, classes: int, hidden: int = 8) -> None:
        super().__init__()
        self.conv = GINConv(nn.Linear(features, hidden))
        self.out = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        rows: Tensor = self.out(global_add_pool(self.conv(x, edge_index).relu(), batch))
        return rows


class Nodewise(Net):
    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        rows: Tensor = self.out(self.conv(x, edge_index))
        return rows


class Broken(Net):
    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return super().forward(x[:, 1:], edge_index, batch)


class Endless(Net):
    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return super().forward(x, edge_index, batch) / 0


def some_graphs(_: Path | None = None) -> list[PygData]:
    made = torch.Generator().manual_seed(1)
    graphs = []
    for number in range(40):
        nodes = 3 + number % 4
        edges = torch.randint(nodes, (2, 7), generator=made)
        graphs.append(PygData(x=torch.randn(nodes, 5, generator=made), edge_index=edges, y=torch.tensor(number % 3)))
    return graphs


@pytest.fixture(autouse=True)
def users() -> Iterator[types.ModuleType]:
    """The user's module."""
    module = types.ModuleType("users")
    vars(module).update({name: value for name, value in globals().items() if isinstance(value, type)})
    vars(module).update(some_graphs=some_graphs)
    sys.modules["users"] = module
    yield module
    del sys.modules["users"]


def objective(task: Task, **changes: Any) -> OwnGraphClassification:
    return OwnGraphClassification(collection_of(some_graphs(), "users:some_graphs"), replace(TRAIN, **changes), task, 0)


def whole_batch() -> Batch:
    everyone = torch.arange(40)
    return Batch(0, 0, everyone, torch.ones(40), 40, everyone)


def test_the_model_gets_the_batch_that_pygs_loader_would_make(lone_task: Task) -> None:
    ours = objective(lone_task)
    together = PygBatch.from_data_list(some_graphs())
    expected = ours.model(together.x.double(), together.edge_index, together.batch)
    prepared = ours.prepare(whole_batch())
    assert torch.allclose(ours.scores(prepared, prepared.given, ()), expected, rtol=1e-12, atol=1e-12)
    loss = nn.functional.cross_entropy(expected, together.y)
    assert ours.loss(whole_batch(), prepared).item() == pytest.approx(loss.item(), rel=1e-12)


@pytest.mark.long
def test_losses_and_accuracy_do_not_depend_on_the_number_of_ranks(tmp_path: Path) -> None:
    found: dict[int, Any] = {}
    for tasks_per_node in ([1], [1, 2]):
        ranks = sum(tasks_per_node)
        outputs = run_program(PROGRAM, RunDir(tmp_path / f"on-{ranks}").attempt(0), tasks_per_node)
        found[ranks] = json.loads(outputs[-1].splitlines()[-1])
    for model in ("GraphNet", "MoleculeNet"):
        losses, score, total = found[1][model]
        assert found[3][model][0] == pytest.approx(losses, rel=1e-9)
        assert found[3][model][1:] == [pytest.approx(score, rel=1e-9), total]
        assert losses[-1] < losses[0]


class Embedding(nn.Module):
    """As for molecules: whole numbers, and arguments in another order."""

    def __init__(self, num_classes: int, hidden: int = 8) -> None:
        super().__init__()
        self.nodes, self.edges = nn.Embedding(9, hidden), nn.Embedding(4, hidden)
        self.conv, self.out = GINEConv(nn.Linear(hidden, hidden)), nn.Linear(hidden + 2, num_classes)

    def forward(self, edge_attr: Tensor, batch: Tensor, x: Tensor, edge_index: Tensor, pos: Tensor) -> Tensor:
        rows = self.conv(self.nodes(x.squeeze()), edge_index, self.edges(edge_attr)).relu()
        out: Tensor = self.out(global_add_pool(torch.cat([rows, pos], 1), batch))
        return out


class OfData(Embedding):
    def forward(self, batched: PygBatch) -> Tensor:  # type: ignore[override]
        assert batched.num_graphs == len(batched.u)
        return super().forward(batched.edge_attr, batched.batch, batched.x, batched.edge_index, batched.pos)


class OtherNames(Net):
    def forward(self, h: Tensor, edges: Tensor, graph_of: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(h, edges, graph_of)


class Optional(Net):
    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor, num_graphs: int = 0, flag: bool = True) -> Tensor:
        assert num_graphs == int(batch.max()) + 1
        return super().forward(x, edge_index, batch)


class Sparse(Net):
    def forward(self, x: Tensor, adj_t: Tensor, batch: Tensor) -> Tensor: ...  # type: ignore[override]


class Starred(Net):
    def forward(self, *everything: Tensor) -> Tensor: ...  # type: ignore[override]


class Charged(Net):
    def forward(self, x: Tensor, edge_index: Tensor, charge: Tensor, batch: Tensor) -> Tensor: ...  # type: ignore[override]


class Pair(Net):
    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Any:
        return super().forward(x, edge_index, batch), x


class Flat(nn.Module):
    """One number for each graph, and no size in its constructor."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(5, 1)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        rows: Tensor = self.out(global_add_pool(x, batch)).squeeze()
        return rows


class Lazy(Net):
    """Layers whose sizes the first graphs give, and dropout before and after the readout."""

    def __init__(self, hidden: int = 8) -> None:
        nn.Module.__init__(self)
        self.conv = GINConv(nn.LazyLinear(hidden))
        self.out = nn.LazyLinear(3)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        x = dropout(self.conv(x, edge_index).relu(), 0.5, self.training)
        rows: Tensor = self.out(dropout(global_add_pool(x, batch), 0.5, self.training))
        return rows


class LazyAside(Lazy):
    def __init__(self) -> None:
        super().__init__()
        self.never = nn.LazyLinear(3)


class Normed(Net):
    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return F.dropout(super().forward(x, edge_index, batch), 0.5, self.training)


class Detached(Net):
    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return super().forward(x, edge_index, batch).detach()


MOLECULES: list[PygData] = []
for number, graph in enumerate(some_graphs()):
    made = torch.Generator().manual_seed(number)
    MOLECULES.append(
        PygData(
            x=torch.randint(9, (graph.num_nodes, 1), generator=made),
            edge_index=graph.edge_index,
            edge_attr=torch.randint(4, (graph.num_edges,), generator=made),
            pos=torch.randn(graph.num_nodes, 2, generator=made),
            u=torch.randn(1, 4, generator=made),
            y=graph.y,
        )
    )


@pytest.mark.parametrize("model", ["Embedding", "OfData"])
def test_attributes_come_as_pygs_loader_gives_them(
    lone_task: Task, capsys: pytest.CaptureFixture[str], model: str
) -> None:
    ours = OwnGraphClassification(
        collection_of(MOLECULES, "my:load"), replace(TRAIN, model=f"users:{model}"), lone_task
    )
    together = PygBatch.from_data_list(MOLECULES)
    prepared = ours.prepare(whole_batch())
    for name in ("x", "edge_index", "edge_attr", "batch", "ptr"):
        assert torch.equal(prepared.given.named[name], together[name]), name  # edges in the user's order
    assert prepared.given.named["pos"].dtype == torch.float64
    together.pos, together.u = together.pos.double(), together.u.double()
    expected = Embedding.forward(
        ours.model, together.edge_attr, together.batch, together.x, together.edge_index, together.pos
    )
    assert torch.allclose(ours.scores(prepared, prepared.given, ()), expected, rtol=1e-12, atol=1e-12)
    assert ("u of the data: not used" in capsys.readouterr().out) == (model == "Embedding")


@pytest.mark.parametrize("model", ["OtherNames", "Optional"])
def test_arguments_may_have_other_names_or_defaults(lone_task: Task, model: str) -> None:
    ours, usual = (objective(lone_task, model=f"users:{name}") for name in (model, "Net"))
    prepared = ours.prepare(whole_batch())
    assert torch.equal(ours.scores(prepared, prepared.given, ()), usual.scores(prepared, prepared.given, ()))


def test_lazy_layers_get_their_sizes_and_dropout_by_node_is_the_same_in_any_batch(lone_task: Task) -> None:
    ours = objective(lone_task, model="users:Lazy", lr=0.1)
    assert ours.model.out.weight.shape == (3, 8)
    every, some = torch.arange(40), torch.tensor([7, 3, 21])
    scores = [
        ours.scored(prepared, prepared.given, (0, 1, 2))
        for prepared in (ours.prepare(Batch(1, 2, part, torch.ones(len(part)), 40, every)) for part in (every, some))
    ]
    assert torch.allclose(scores[0][some], scores[1], rtol=1e-12, atol=1e-12)
    other = ours.prepare(whole_batch())
    assert not torch.allclose(scores[0], ours.scored(other, other.given, (0, 1, 3)))


@pytest.mark.parametrize(("model", "said"), [("Lazy", False), ("Normed", True), ("Net", False)])
def test_what_depends_on_the_number_of_ranks_is_said(
    lone_task: Task, capsys: pytest.CaptureFixture[str], model: str, said: bool
) -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    ours = objective(lone_task, model=f"users:{model}")
    assert ("a forward draws random numbers" in capsys.readouterr().out) == said
    assert ours.model.training
    torch.manual_seed(3)
    assert torch.equal(torch.rand(1), expected)


def test_features_are_those_of_the_data_unless_another_kind_is_set(lone_task: Task) -> None:
    widths = {kind: objective(lone_task, features=kind).model.conv.nn.in_features for kind in ("auto", "ones", "given")}
    assert widths == {"auto": 5, "ones": 1, "given": 5}


@pytest.mark.parametrize(
    ("loss", "plain"), [("mse", F.mse_loss), ("bce_with_logits", F.binary_cross_entropy_with_logits)]
)
def test_several_targets_count_where_they_are_known(lone_task: Task, loss: str, plain: Any) -> None:
    graphs = [PygData(x=graph.x, edge_index=graph.edge_index) for graph in some_graphs()]
    made = torch.Generator().manual_seed(5)
    for graph in graphs:
        graph.y = torch.randint(2, (1, 3), generator=made).float()
        graph.y[torch.rand(1, 3, generator=made) < 0.3] = float("nan")
    train = replace(TRAIN, loss=loss)
    ours = OwnGraphClassification(collection_of(graphs, "my:load", answers="numbers"), train, lone_task)
    prepared = ours.prepare(whole_batch())
    y = torch.cat([graph.y for graph in graphs]).double()
    known = ~y.isnan()
    expected = plain(ours.scores(prepared, prepared.given, ())[known], y[known])
    assert ours.loss(whole_batch(), prepared).item() == pytest.approx(expected.item(), rel=1e-12)
    assert ours.evaluate(["test"])["test"].total == 4


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_number_for_each_graph_may_have_any_shape(lone_task: Task, shape: tuple[int, ...]) -> None:
    graphs = [PygData(x=graph.x, edge_index=graph.edge_index, y=graph.x.sum().view(shape)) for graph in some_graphs()]
    train = replace(TRAIN, model="users:Flat", loss="l1")
    ours = OwnGraphClassification(collection_of(graphs, "my:load", answers="numbers"), train, lone_task)
    assert ours.loss(whole_batch(), ours.prepare(whole_batch())).isfinite()
    assert ours.evaluate(["val"])["val"].name == "mae"


def test_evaluation_takes_batches_of_bounded_size(lone_task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = objective(lone_task)
    whole = ours.evaluate(["train"])
    sizes: list[int] = []
    ours.model.register_forward_pre_hook(
        lambda _, __, given: sizes.append(len(given["x"]) + given["edge_index"].size(1)), with_kwargs=True
    )
    monkeypatch.setattr(graph_objective, "_LARGEST_PIECE", 30)
    assert ours.evaluate(["train"]) == whole
    assert len(sizes) > 5
    assert max(sizes) <= 30 + 13  # one graph more


def test_splits_of_the_data_replace_the_folds(lone_task: Task) -> None:
    graphs = some_graphs()
    for parts in (
        (graphs[:20], graphs[20:30], graphs[30:]),
        {"test": graphs[30:], "train": graphs[:20], "val": graphs[20:30]},
        [PygBatch.from_data_list(graphs[:20]), iter(graphs[20:30]), graphs[30:]],
    ):
        if isinstance(parts, list):
            parts[1] = list(parts[1])
        collection = collection_of(parts, "my:load")
        ours = OwnGraphClassification(collection, TRAIN, lone_task)
        assert {split: score.total for split, score in ours.evaluate(["train", "val", "test"]).items()} == {
            "train": 20,
            "val": 10,
            "test": 10,
        }
        assert ours.seeds.tolist() == list(range(20))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"edge_attr": None}, "39 of 40 graphs have edge_attr"),
        ({"edge_attr": torch.ones(3)}, "graph 3: edge_attr has 3 rows, and there are 7 edges"),
        ({"edge_attr": torch.ones(7, 2)}, r"graph 3: edge_attr has shape \[7, 2\], and graph 0 has \[7\]"),
        ({"edge_attr": torch.full((7,), float("nan"))}, "graph 3: edge_attr has NaN or infinity"),
        ({"pos": torch.ones(2, 2)}, "graph 3: pos has 2 rows, and there are 6 nodes"),
        ({"y": torch.ones(1, 2)}, "graph 3: y has 2 values, and graph 0 has 1"),
        ({"y": torch.full((1,), float("inf"))}, "graph 3: y is infinite"),
        ({"y": torch.ones(2, 1)}, "graph 3: y has shape"),
        ({"x": None}, "39 of 40 graphs have x"),
    ],
)
def test_a_graph_unlike_the_others_is_refused(changes: dict[str, Any], words: str) -> None:
    graphs = [graph.clone() for graph in MOLECULES]
    for name, value in changes.items():
        graphs[3][name] = value
    with pytest.raises(TaskError, match=words) as refused:
        collection_of(graphs, "my:load", answers="numbers")
    assert refused.value.hint


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ([some_graphs(), some_graphs()], "graph 0: it is list, not Data"),
        ((some_graphs(), [], some_graphs()), "the list of val is empty"),
        ({"train": some_graphs(), "valid": some_graphs(), "test": some_graphs()}, "dict with train, valid, test"),
        ([HeteroData(), HeteroData()], "graph 0: it is HeteroData"),
        ([some_graphs()[0], 3], "graph 1: it is int"),
    ],
)
def test_what_is_no_list_of_graphs_is_refused(result: Any, words: str) -> None:
    with pytest.raises(TaskError, match=words) as refused:
        collection_of(result, "my:load")
    assert refused.value.hint


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("users:Sparse", ["forward(x, adj_t, batch): the graphs have no adj_t"]),
        ("users:Starred", ["forward(*everything): it is unknown what *everything takes"]),
        ("users:Charged", ["the graphs have no charge"]),
        ("users:Pair", ["forward gives tuple"]),
        ("users:Detached", ["forward gives scores without a gradient"]),
        ("users:LazyAside", ["lazy layers", "never.weight"]),
        ("users:Embedding", ["the graphs have no edge_attr, pos"]),
        ("users:Nodewise", ["forward gives a tensor [", "[graphs, classes] = [8, 3]"]),
        ("users:Broken", ["forward fails on x [", ", 5], 56 edges, 8 graphs: ", "test_own_graph_model.py, line"]),
        ("users:Endless", ["the loss is not finite: forward of users:Endless"]),
        ("users:Nett", ["users has no Nett"]),
    ],
)
def test_a_wrong_model_is_reported(lone_task: Task, model: str, words: list[str]) -> None:
    def step() -> None:
        ours = objective(lone_task, model=model)
        ours.loss(whole_batch(), ours.prepare(whole_batch()))

    with pytest.raises(TaskError) as raised:
        step()
    assert all(word in raised.value.message for word in words), raised.value.message


def test_the_users_graphs_are_stored_unchanged(tmp_path: Path) -> None:
    save(recipe(Data(load="users:some_graphs")).build(tmp_path), tmp_path / "graphs")
    stored = load(Collection, tmp_path / "graphs")
    assert (stored.num_graphs, stored.num_classes, stored.num_nodes) == (40, 3, 180)
    together = PygBatch.from_data_list(some_graphs())
    assert torch.equal(stored.x, together.x)
    assert torch.equal(stored.y, together.y)
    targets = torch.arange(180).repeat_interleave(stored.degree)
    edges = {(int(source), int(target)) for source, target in zip(stored.indices, targets, strict=True)}
    assert edges == set(map(tuple, together.edge_index.t().tolist()))


@pytest.mark.parametrize(
    ("graphs", "words"),
    [
        ([], "is empty"),
        ([PygData(x=torch.zeros(2, 1), edge_index=torch.zeros(2, 0))], "graph 0: it has no y"),
        ([PygData(x=torch.zeros(2, 1), edge_index=torch.tensor([[0], [5]]), y=torch.tensor(0))], "beyond its 2 nodes"),
    ],
)
def test_unusable_data_is_reported(graphs: list[PygData], words: str) -> None:
    with pytest.raises(TaskError, match=words):
        collection_of(graphs, "users:some_graphs")


def test_settings_that_the_chosen_model_ignores_are_refused() -> None:
    job = Job(name="t", workload="graph-classification", train=replace(TRAIN, hidden_channels=16))
    (problem,) = contradictions(job, Cluster(name="c"))
    assert problem.path == ("train", "hidden_channels")
    job = replace(job, train=GraphClassificationTrain(options={"hidden": 3}))
    (problem,) = contradictions(job, Cluster(name="c"))
    assert problem.path == ("train", "options")
