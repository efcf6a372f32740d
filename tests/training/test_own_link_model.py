"""Link prediction with the user's own model: messages, exact evaluation, ranks, mistakes, data."""

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
from support.own_nets import Encoder, some_links
from support.ranks import run_program
from torch import Tensor
from torch_geometric.data import Data as PygData

from clusterctl.engine.graph.features import hidden
from clusterctl.engine.graph.links import ends, has_edge
from clusterctl.engine.graph.storage import load, save
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import EpochPlan
from clusterctl.engine.training.link_objective import auc
from clusterctl.engine.training.own_link_objective import LinkGraph, LinkSample, OwnLinkPrediction
from clusterctl.engine.workloads.link_prediction import link_graph
from clusterctl.launcher.config.resolution import contradictions
from clusterctl.shared.errors import TaskError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Cluster, Data, Job, LinkPredictionTrain

TRAIN = LinkPredictionTrain(model="users:Encoder", fan_out=(-1, -1), batch_size=16, precision="float64")
PROGRAM = f"""
import json, sys
import torch_geometric  # before the ranks are forked
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from dataclasses import replace
from clusterctl.engine.graph.storage import shared
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.layout import current_attempt
from clusterctl.shared.spec import Data, LinkPredictionTrain
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.own_link_objective import LinkGraph, OwnLinkPrediction
from clusterctl.engine.workloads.link_prediction import link_graph
from clusterctl.engine.data.own_data import own_recipe

class Losses(list):
    def write(self, loss=None, **others):
        if loss is not None:
            self.append(loss)

with joined(Context({{"name": "t", "workload": "reddit"}}, attempt=current_attempt())) as task:
    graph = shared(task, LinkGraph, *own_recipe(Data(load="support.own_nets:some_links"), link_graph))
    train = LinkPredictionTrain(
        model="support.own_nets:Encoder", batch_size=None, global_batch_size=100, epochs=3, precision="float64", lr=0.01
    )
    losses = Losses()
    score = fit(OwnLinkPrediction(graph, train, task, {{cache}}), train, replace(task, metrics=losses))
print(json.dumps([losses, score]))
"""


class Whole(Encoder):
    """The same model, with `forward` instead of `layer`."""

    def __getattribute__(self, name: str) -> Any:
        if name == "layer":
            raise AttributeError(name)
        return super().__getattribute__(name)

    def forward(self, hops: list[Any], x: Tensor) -> Tensor:
        for i, hop in enumerate(hops):
            x = Encoder.layer(self, i, hop, x)
        return x


class Scoring(Encoder):
    def score(self, sources: Tensor, targets: Tensor) -> Tensor:
        return (sources - targets).square().sum(1).neg()


class WrongScore(Encoder):
    def score(self, sources: Tensor, targets: Tensor) -> Tensor:
        return sources * targets


@pytest.fixture(autouse=True)
def users() -> Iterator[types.ModuleType]:
    """The user's module."""
    module = types.ModuleType("users")
    vars(module).update(Encoder=Encoder, Whole=Whole, Scoring=Scoring, WrongScore=WrongScore)
    sys.modules["users"] = module
    yield module
    del sys.modules["users"]


@pytest.fixture(scope="module")
def graph() -> LinkGraph:
    return link_graph(some_links(), "users:some_links")


def objective(graph: LinkGraph, task: Task, **changes: Any) -> OwnLinkPrediction:
    return OwnLinkPrediction(graph, replace(TRAIN, **changes), task)


def messages(prepared: LinkSample) -> set[tuple[int, int]]:
    """The (source, target) pairs along which a message is passed in any hop."""
    found: set[tuple[int, int]] = set()
    for hop in prepared.hops:
        found |= set(map(tuple, hop.nodes[hop.edge_index].t().tolist()))
    return found


def scores_of(model: Any, graph: LinkGraph, pairs: Tensor) -> Tensor:
    """Scores by PyG's layers on the whole graph of training edges."""
    targets = torch.arange(graph.num_nodes).repeat_interleave(graph.degree)
    edges = torch.stack([graph.indices.long(), targets])
    x = model.last(model.first(graph.x.double(), edges).relu(), edges)
    if hasattr(model, "score"):
        scores: Tensor = model.score(x[pairs[0]], x[pairs[1]])
        return scores
    return (x[pairs[0]] * x[pairs[1]]).sum(1)


def test_splits_are_disjoint_by_undirected_pair_and_hold_every_edge(graph: LinkGraph) -> None:
    edges = some_links().edge_index
    whole = set(map(tuple, edges[:, edges[0] != edges[1]].t().tolist()))
    training = torch.stack(ends(graph, torch.arange(len(graph.indices))))
    parts = [set(map(tuple, pairs.t().tolist())) for pairs in (training, graph.val, graph.test)]
    assert set().union(*parts) == whole
    undirected = [{frozenset(pair) for pair in part} for part in parts]
    assert not undirected[0] & undirected[1]
    assert not undirected[0] & undirected[2]
    assert not undirected[1] & undirected[2]
    for split in ("val", "test"):
        positives, negatives = getattr(graph, split), getattr(graph, f"{split}_negatives")
        assert positives.shape == negatives.shape
        pairs = set(map(tuple, negatives.t().tolist()))
        assert not pairs & (whole | {(target, source) for source, target in whole})
        assert all(source != target for source, target in pairs)


@pytest.mark.parametrize("world_size", [1, 4])
def test_no_example_of_the_global_batch_carries_a_message_in_either_direction(
    graph: LinkGraph, lone_task: Task, world_size: int
) -> None:
    trained = objective(graph, lone_task)
    plans = [EpochPlan(trained.seeds, 16, 0, rank, world_size) for rank in range(world_size)]
    everything_passed: set[tuple[int, int]] = set()
    for batches in zip(*(plan.batches(1) for plan in plans), strict=True):
        sources, targets = ends(graph, batches[0].everyone)
        hidden = set(zip(sources.tolist(), targets.tolist(), strict=True))
        hidden |= {(target, source) for source, target in hidden}
        passed = set().union(*(messages(trained.prepare(batch)) for batch in batches))
        assert not hidden & passed
        everything_passed |= passed
    assert everything_passed


def test_a_batch_has_its_edges_and_as_many_non_edges(graph: LinkGraph, lone_task: Task) -> None:
    trained = objective(graph, lone_task)
    (batch, *_) = EpochPlan(trained.seeds, 16, 0, 0, 1).batches(1)
    prepared = trained.prepare(batch)
    pairs = prepared.hops[-1].nodes[prepared.pairs]
    assert torch.equal(pairs[:, :16], torch.stack(ends(graph, batch.seeds)))
    assert has_edge(graph, *pairs).tolist() == [True] * 16 + [False] * 16


@pytest.mark.parametrize("model", ["Encoder", "Whole", "Scoring"])
def test_evaluation_matches_pygs_layers_on_the_whole_graph(graph: LinkGraph, lone_task: Task, model: str) -> None:
    trained = objective(graph, lone_task, model=f"users:{model}")
    found = trained.evaluate(["val", "test"])
    with torch.no_grad():
        for split, score in found.items():
            pairs = [getattr(graph, name).long() for name in (split, f"{split}_negatives")]
            assert score == auc(*(scores_of(trained.model, graph, side) for side in pairs))


@pytest.mark.parametrize("model", ["Encoder", "Whole", "Scoring"])
def test_with_features_on_disk_embeddings_are_there_too(
    graph: LinkGraph, lone_task: Task, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(graph, tmp_path / "graph.pt")
    train = replace(TRAIN, model=f"users:{model}")
    memory = OwnLinkPrediction(graph, train, lone_task).evaluate(["val", "test"])
    disk = OwnLinkPrediction(load(LinkGraph, tmp_path / "graph.pt"), train, lone_task, 300)
    monkeypatch.setattr(hidden, "shared_table", None)
    monkeypatch.setattr("clusterctl.engine.training.own_link_objective._PAIRS_AT_ONCE", 7)
    assert disk.evaluate(["val", "test"]) == memory


def result_of_ranks(folder: Path, tasks_per_node: list[int], cache: int | None = None) -> Any:
    """The losses, and the AUC's parts."""
    program = PROGRAM.replace("{cache}", str(cache))
    outputs = run_program(program, RunDir(folder / f"on-{sum(tasks_per_node)}-{cache}").attempt(0), tasks_per_node)
    return json.loads(outputs[-1].splitlines()[-1])


@pytest.mark.long
@pytest.mark.parametrize("tasks_per_node", [[1], [1, 2]])
def test_with_features_on_disk_losses_and_auc_are_the_same(tmp_path: Path, tasks_per_node: list[int]) -> None:
    memory, disk = (result_of_ranks(tmp_path, tasks_per_node, cache) for cache in (None, 300))
    assert disk == memory


@pytest.mark.long
def test_losses_and_auc_do_not_depend_on_the_number_of_ranks_and_it_learns(tmp_path: Path) -> None:
    losses, score = result_of_ranks(tmp_path, [1])
    losses_of_three, score_of_three = result_of_ranks(tmp_path, [1, 2])
    assert losses_of_three == pytest.approx(losses, rel=1e-9)
    assert score_of_three == score
    half_wins, positives, negatives = score
    assert half_wins / (2 * positives * negatives) > 0.7


def test_a_wrong_score_is_reported(graph: LinkGraph, lone_task: Task) -> None:
    trained = objective(graph, lone_task, model="users:WrongScore")
    (batch, *_) = EpochPlan(trained.seeds, 16, 0, 0, 1).batches(1)
    prepared = trained.prepare(batch)
    with pytest.raises(
        TaskError, match=r"score gives a tensor \[32, 4\], where a number for each of 32 pairs is wanted"
    ):
        trained.loss(batch, prepared)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (PygData(edge_index=torch.zeros(2, 1)), "has no x"),
        (
            PygData(x=torch.zeros(3, 1), edge_index=torch.tensor([[0], [7]])),
            "targets from 7 to 7, beyond",
        ),
        (PygData(x=torch.zeros(3, 1), edge_index=torch.tensor([[0], [1]])), "has 1 edges, too few for"),
    ],
)
def test_unusable_data_is_reported(data: PygData, words: str) -> None:
    with pytest.raises(TaskError, match=words):
        link_graph(data, "users:load")


def test_a_job_without_a_graph_is_refused() -> None:
    job = Job(name="t", workload="link-prediction", train=TRAIN)
    (problem,) = contradictions(job, Cluster(name="c"))
    assert problem.path == ("data", "load")
    assert not list(contradictions(replace(job, data=Data(load="users:load")), Cluster(name="c")))
