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
from torch_geometric.data import Batch as PygBatch
from torch_geometric.data import Data as PygData
from torch_geometric.nn import GINConv, global_add_pool

from clusterctl.engine.data.own_graphs import collection_of
from clusterctl.engine.graph.collection import Collection
from clusterctl.engine.graph.storage import load, save
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import Batch
from clusterctl.engine.training.graph_objective import OwnGraphClassification
from clusterctl.engine.workloads.graph_classification import recipe
from clusterctl.launcher.config.resolution import contradictions
from clusterctl.shared.errors import TaskError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Cluster, Data, GraphClassificationTrain, Job

TRAIN = GraphClassificationTrain(model="users:Net", features="given", precision="float64")
PROGRAM = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from dataclasses import replace
from clusterctl.engine.graph.collection import Collection
from clusterctl.engine.graph.storage import shared
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.layout import current_attempt
from clusterctl.shared.spec import Data, GraphClassificationTrain
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.graph_objective import OwnGraphClassification
from clusterctl.engine.training.progress import Fold
from clusterctl.engine.workloads.graph_classification import recipe

class Losses(list):
    def write(self, loss=None, **others):
        if loss is not None:
            self.append(loss)

with joined(Context({{"name": "t", "workload": "reddit"}}, attempt=current_attempt())) as task:
    graphs = shared(task, Collection, *recipe(Data(root={str(IMDB)!r})))
    train = GraphClassificationTrain(
        model="support.own_nets:GraphNet", batch_size=None, global_batch_size=240, epochs=3, precision="float64",
        lr=0.01,
    )
    losses = Losses()
    score = fit(OwnGraphClassification(graphs, train, task, 3), train, replace(task, metrics=losses), Fold(1, 1))
print(json.dumps([losses, score]))
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
    vars(module).update(Net=Net, Nodewise=Nodewise, Broken=Broken, Endless=Endless, some_graphs=some_graphs)
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
    assert torch.allclose(ours.scores(prepared, prepared.rows, ()), expected, rtol=1e-12, atol=1e-12)
    loss = nn.functional.cross_entropy(expected, together.y)
    assert ours.loss(whole_batch(), prepared).item() == pytest.approx(loss.item(), rel=1e-12)


@pytest.mark.long
def test_losses_and_accuracy_do_not_depend_on_the_number_of_ranks(tmp_path: Path) -> None:
    found: dict[int, Any] = {}
    for tasks_per_node in ([1], [1, 2]):
        ranks = sum(tasks_per_node)
        outputs = run_program(PROGRAM, RunDir(tmp_path / f"on-{ranks}").attempt(0), tasks_per_node)
        found[ranks] = json.loads(outputs[-1].splitlines()[-1])
    losses, score = found[1]
    assert found[3][0] == pytest.approx(losses, rel=1e-9)
    assert (found[3][1], losses[-1] < losses[0]) == (score, True)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("users:Nodewise", ["forward gives a tensor [180, 3]", "[graphs, classes] = [40, 3]"]),
        ("users:Broken", ["forward fails on x [180, 5], 280 edges, 40 graphs"]),
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
