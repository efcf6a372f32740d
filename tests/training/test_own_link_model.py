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
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import seed_everything
from torch_geometric.data import Data as PygData
from torch_geometric.data import HeteroData
from torch_geometric.nn import ARGA, GAE, GCN, VGAE, GATv2Conv, GraphConv, SAGEConv
from torch_geometric.transforms import RandomLinkSplit
from torch_geometric.utils import to_undirected

from clusterctl.engine.data.own_links import link_graph
from clusterctl.engine.graph import inference
from clusterctl.engine.graph.links import LinkGraph, ends, has_edge, other_messages
from clusterctl.engine.graph.storage import load, save
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import EpochPlan
from clusterctl.engine.training.objectives.link import auc
from clusterctl.engine.training.objectives.own_link import LinkSample, OwnLinkPrediction
from clusterctl.launcher.config.resolution import contradictions
from clusterctl.shared.errors import TaskError
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec import Cluster, Data, Job, LinkPredictionTrain

TRAIN = LinkPredictionTrain(model="users:Encoder", fan_out=(-1, -1), batch_size=16, precision="float64")
PROGRAM = """
import json
import torch_geometric  # before the ranks are forked
from dataclasses import replace
from clusterctl.engine.graph.storage import shared
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.layout import current_attempt
from clusterctl.shared.spec import Data, LinkPredictionTrain
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objectives.own_link import OwnLinkPrediction
from clusterctl.engine.data.own_links import link_graph
from clusterctl.engine.graph.links import LinkGraph
from clusterctl.engine.data.own_data import own_recipe
from support.ranks import Losses

with joined(Context({"name": "t", "workload": "reddit"}, attempt=current_attempt())) as task:
    graph = shared(task, LinkGraph, *own_recipe(Data(load="support.own_nets:{load}"), link_graph))
    train = LinkPredictionTrain(
        model="support.own_nets:{model}", batch_size=None, global_batch_size=100, epochs=3, precision="float64",
        lr=0.01, negatives={negatives}, metric="{metric}"
    )
    losses = Losses()
    score = fit(OwnLinkPrediction(graph, train, task, {cache}), train, replace(task, metrics=losses))
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


class Pygs(Encoder):
    """As PyG's users write it: whole forward passes, and a decoder with parameters."""

    def __init__(self, in_channels: int, hidden: int = 8) -> None:
        super().__init__(in_channels, hidden)
        self.mlp = nn.Linear(hidden, 1)

    def __getattribute__(self, name: str) -> Any:
        if name == "layer":
            raise AttributeError(name)
        return super().__getattribute__(name)

    def encode(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.last(self.first(x, edge_index).relu(), edge_index)
        return out

    def decode(self, z: Tensor, edge_label_index: Tensor) -> Tensor:
        out: Tensor = self.mlp(z[edge_label_index[0]] * z[edge_label_index[1]])
        return out


class OfForward(Pygs):
    def __getattribute__(self, name: str) -> Any:
        if name in ("layer", "encode"):
            raise AttributeError(name)
        return super().__getattribute__(name)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return Pygs.encode(self, x, edge_index)

    def decode(self, z_src: Tensor, z_dst: Tensor) -> Tensor:  # type: ignore[override]
        out: Tensor = self.mlp(z_src * z_dst).squeeze()
        return out


class OldDecoder(Pygs):
    def decode(self, z: Tensor, pos_edge_index: Tensor, neg_edge_index: Tensor) -> Tensor: ...  # type: ignore[override]


class WideDecoder(Pygs):
    def decode(self, z: Tensor, edge_label_index: Tensor) -> Tensor:
        return z[edge_label_index[0]]


class BrokenDecoder(Pygs):
    def decode(self, z: Tensor, edge_label_index: Tensor) -> Tensor:
        return super().decode(z[:, 1:], edge_label_index)


class StarredDecoder(Pygs):
    def decode(self, *others: Tensor) -> Tensor: ...  # type: ignore[override]


class Weighted(Pygs):
    """Uses both attributes of edges."""

    def __init__(self, in_channels: int, hidden: int = 8) -> None:
        super().__init__(in_channels, hidden)
        self.conv = GraphConv(in_channels, hidden)
        self.bond = GATv2Conv(hidden, hidden, edge_dim=2)

    def encode(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor, edge_attr: Tensor | None = None) -> Tensor:  # type: ignore[override]
        x = self.conv(x, edge_index, edge_weight).relu()
        out: Tensor = self.bond(x, edge_index, edge_attr)
        return out


class TwoSides(nn.Module):
    """The encoder of a variational autoencoder, as in PyG's examples."""

    def __init__(self, in_channels: int, width: int = 4) -> None:
        super().__init__()
        self.conv, self.mu, self.logstd = SAGEConv(in_channels, 8), SAGEConv(8, width), SAGEConv(8, width)

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        x = self.conv(x, edge_index).relu()
        return self.mu(x, edge_index), self.logstd(x, edge_index)


def autoencoder(in_channels: int) -> nn.Module:
    return GAE(GCN(in_channels, 8, 2, 4))


def variational(in_channels: int) -> nn.Module:
    return VGAE(TwoSides(in_channels))


def adversarial(in_channels: int) -> nn.Module:
    return ARGA(GCN(in_channels, 8, 2, 4), nn.Linear(4, 1))


class Labelled(Pygs):
    def encode(self, x: Tensor, edge_index: Tensor, edge_label: Tensor) -> Tensor: ...  # type: ignore[override]


@pytest.fixture(autouse=True)
def users() -> Iterator[types.ModuleType]:
    """The user's module."""
    module = types.ModuleType("users")
    vars(module).update({name: value for name, value in globals().items() if callable(value)})
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
    pairs = prepared.hops[-1].nodes[prepared.scored.pairs]
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
    monkeypatch.setattr(inference, "shared_table", None)
    monkeypatch.setattr("clusterctl.engine.training.objectives.own_link._PAIRS_AT_ONCE", 7)
    assert disk.evaluate(["val", "test"]) == memory


FORMS: dict[str, Any] = {
    "layer": {"load": "some_links", "model": "Encoder", "negatives": 1, "metric": "roc_auc"},
    "encode": {"load": "split_links", "model": "LinkNet", "negatives": 2, "metric": "hits@10"},
}


def result_of_ranks(folder: Path, tasks_per_node: list[int], cache: int | None = None, form: str = "layer") -> Any:
    """The losses, and the score's parts."""
    program = PROGRAM.replace("{cache}", str(cache))
    for name, value in FORMS[form].items():
        program = program.replace(f"{{{name}}}", str(value))
    run = RunDir(folder / f"{form}-on-{sum(tasks_per_node)}-{cache}")
    return json.loads(run_program(program, run.attempt(0), tasks_per_node)[-1].splitlines()[-1])


@pytest.mark.long
@pytest.mark.parametrize("tasks_per_node", [[1], [1, 2]])
def test_with_features_on_disk_losses_and_auc_are_the_same(tmp_path: Path, tasks_per_node: list[int]) -> None:
    memory, disk = (result_of_ranks(tmp_path, tasks_per_node, cache) for cache in (None, 300))
    assert disk == memory


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_losses_and_scores_do_not_depend_on_the_number_of_ranks_and_it_learns(tmp_path: Path, form: str) -> None:
    losses, score = result_of_ranks(tmp_path, [1], form=form)
    losses_of_three, score_of_three = result_of_ranks(tmp_path, [1, 2], form=form)
    assert losses_of_three == pytest.approx(losses, rel=1e-9)
    assert score_of_three == score
    if form == "layer":
        half_wins, positives, negatives = score
        assert half_wins / (2 * positives * negatives) > 0.7


def split(**options: Any) -> tuple[PygData, PygData, PygData]:
    """Training, validation and test data, as PyG's users make them."""
    seed_everything(1)
    chosen = {"num_val": 0.1, "num_test": 0.2, "add_negative_train_samples": False} | options
    parts: tuple[PygData, PygData, PygData] = RandomLinkSplit(**chosen)(some_links())
    return parts


def pairs_of(data: PygData, label: int) -> Tensor:
    pairs: Tensor = data.edge_label_index[:, data.edge_label == label]
    return pairs


@pytest.mark.parametrize("model", ["Pygs", "OfForward"])
@pytest.mark.parametrize(("metric", "name"), [("roc_auc", "AUC"), ("hits@5", "hits@5"), ("mrr", "mrr")])
def test_each_split_is_scored_on_its_own_messages_and_negatives(
    lone_task: Task, model: str, metric: str, name: str
) -> None:
    parts = dict(zip(("train", "val", "test"), split(neg_sampling_ratio=3.0), strict=True))
    trained = objective(link_graph(parts, "my:load"), lone_task, model=f"users:{model}", metric=metric)
    trained.model.eval()
    for which, score in trained.evaluate(["val", "test"]).items():
        data = parts[which]
        with torch.no_grad():
            z = Pygs.encode(trained.model, data.x.double(), data.edge_index)
            positive, negative = (Pygs.decode(trained.model, z, pairs_of(data, label)).view(-1) for label in (1, 0))
        assert len(negative) == 3 * len(positive)
        if metric == "roc_auc":
            assert score == auc(positive, negative)
        elif metric == "mrr":
            ranks = [1 + int((negative > one).sum()) + int((negative == one).sum()) / 2 for one in positive]
            assert score.value == pytest.approx(sum(1 / rank for rank in ranks) / len(ranks), rel=1e-12)
        else:
            assert score.value == pytest.approx(float((positive > negative.topk(5).values[-1]).double().mean()))
        assert (score.name, score.total >= len(positive)) == (name, True)


def test_examples_are_those_given_and_pass_no_messages(lone_task: Task) -> None:
    train = split()[0]
    trained = objective(link_graph(split(), "my:load"), lone_task, negatives=3, model="users:Pygs")
    assert trained.seeds.numel() == train.edge_label_index.size(1)
    everything: set[tuple[int, int]] = set()
    edges = set(map(tuple, train.edge_index.t().tolist()))
    for batch in EpochPlan(trained.seeds, 16, 0, 0, 1).batches(1):
        prepared = trained.prepare(batch)
        (sample,) = prepared.hops
        pairs = sample.nodes[prepared.scored.pairs]
        count = batch.seeds.numel()
        assert prepared.scored.y.tolist() == [1.0] * count + [0.0] * 3 * count
        assert torch.equal(pairs[:, :count], train.edge_label_index[:, batch.seeds])
        assert not edges & set(map(tuple, pairs[:, count:].t().tolist()))
        passed = set(map(tuple, sample.nodes[sample.edge_index].t().tolist()))
        examples = set(map(tuple, pairs[:, :count][:, batch.weights].t().tolist()))
        assert not passed & (examples | {(target, source) for source, target in examples})
        everything |= examples
        weights = prepared.scored.weights.double()
        scores = trained.scores(prepared, trained.gather(prepared), ())
        expected = (F.binary_cross_entropy_with_logits(scores, prepared.scored.y, reduction="none") * weights).sum()
        assert trained.loss(batch, prepared).item() == pytest.approx(expected.item() / (4 * batch.total), rel=1e-12)
    assert everything == set(map(tuple, train.edge_label_index.t().tolist()))


@pytest.mark.parametrize("negatives", [0, 1])
def test_pairs_without_an_edge_may_be_given_for_training_too(
    lone_task: Task, capsys: pytest.CaptureFixture[str], negatives: int
) -> None:
    parts = split(add_negative_train_samples=True, neg_sampling_ratio=0.5)
    train = parts[0]
    trained = objective(link_graph(parts, "my:load"), lone_task, model="users:Pygs", negatives=negatives)
    given = {label: set(map(tuple, pairs_of(train, label).t().tolist())) for label in (0, 1)}
    assert trained.seeds.numel() == train.edge_label.numel()
    found: dict[int, set[tuple[int, int]]] = {0: set(), 1: set()}
    for batch in EpochPlan(trained.seeds, 16, 0, 0, 1).batches(1):
        prepared = trained.prepare(batch)
        pairs = prepared.hops[0].nodes[prepared.scored.pairs][:, : batch.seeds.numel()]
        for pair, label in zip(pairs.t().tolist(), prepared.scored.y.tolist(), strict=False):
            found[int(label)].add((pair[0], pair[1]))
        edges = int(prepared.scored.y.sum())
        assert len(prepared.scored.y) == batch.seeds.numel() + negatives * edges
        assert prepared.scored.total == int(prepared.scored.weights.sum())  # on one rank
    assert found == given
    assert ("have edge_label 0 and are examples" in capsys.readouterr().out) == bool(negatives)


def test_drawn_pairs_are_never_examples_outside_of_the_messages(lone_task: Task) -> None:
    parts = split(disjoint_train_ratio=0.5)
    trained = objective(link_graph(parts, "my:load"), lone_task, negatives=8, model="users:Pygs")
    edges = torch.cat([parts[0].edge_index, parts[0].edge_label_index], 1)
    known = set(map(tuple, edges.t().tolist()))
    for batch in EpochPlan(trained.seeds, 64, 0, 0, 1).batches(1):
        prepared = trained.prepare(batch)
        drawn = prepared.hops[0].nodes[prepared.scored.pairs][:, prepared.scored.y == 0]
        assert not known & set(map(tuple, drawn.t().tolist()))


def test_a_drawn_pair_is_never_a_node_and_itself(lone_task: Task) -> None:
    """As with PyG's negative_sampling, also if some examples are self loops."""
    parts = split()
    loops = parts[0].edge_label_index[0] == parts[0].edge_label_index[1]
    assert loops.any()
    trained = objective(link_graph(parts, "my:load"), lone_task, negatives=8, model="users:Pygs")
    found = 0
    for batch in EpochPlan(trained.seeds, 64, 0, 0, 1).batches(1):
        (sources, targets), y, weights, _ = trained.prepare(batch).scored
        is_loop = (sources == targets) & (weights > 0)
        assert not (is_loop & (y == 0)).any()
        found += int(is_loop.sum())
    assert found == int(loops.sum())


def test_other_forms_of_the_same_splits_give_the_same_graph() -> None:
    expected, parts = link_graph(split(), "my:load"), split(split_labels=True)
    for same in (parts, list(parts), dict(zip(("train", "val", "test"), parts, strict=True))):
        graph = link_graph(same, "my:load")
        for name in ("indices", "train", "val", "test"):
            assert torch.equal(getattr(graph, name), getattr(expected, name)), name
    unlabelled = [part.clone() for part in split()]
    del unlabelled[0].edge_label_index, unlabelled[0].edge_label, unlabelled[1].edge_label
    graph = link_graph(unlabelled, "my:load", notes := [])
    assert graph.train is None  # all edges are examples
    assert graph.val_negatives.shape == graph.val.shape
    assert notes[0] == "val: no pair has edge_label 0, so as many without an edge are drawn"


def test_a_leak_is_named_in_one_line() -> None:
    torch.manual_seed(1)
    both_ways = some_links()
    both_ways.edge_index = to_undirected(both_ways.edge_index)
    train, val, test = RandomLinkSplit(is_undirected=True, add_negative_train_samples=False)(both_ways)
    link_graph((train, val, test), "my:load", notes := [])
    assert notes == []
    test.edge_label_index = torch.cat([test.edge_label_index, train.edge_label_index[:, :3].flip(0)], 1)
    test.edge_label = torch.cat([test.edge_label, torch.ones(3)])
    val.edge_index = torch.cat([val.edge_index, pairs_of(val, 1)[:, :2]], 1)
    link_graph((train, val, test), "my:load", notes := [])
    found = [pairs_of(part, 1).size(1) for part in (val, test)]
    assert notes == [
        f"leak: 2 of {found[0]} pairs to predict in val are, in either direction, in edge_index of val",
        f"leak: 3 of {found[1]} pairs to predict in test are, in either direction, examples of train",
        f"leak: 3 of {found[1]} pairs to predict in test are, in either direction, in edge_index of test",
    ]


def with_attributes(data: PygData) -> PygData:
    generator = torch.Generator().manual_seed(5)
    data.edge_weight = torch.rand(data.edge_index.size(1), generator=generator)
    data.edge_attr = torch.randn(data.edge_index.size(1), 2, generator=generator)
    return data


@pytest.mark.parametrize("form", ["one graph", "splits", "splits with other messages"])
def test_attributes_of_edges_stay_with_their_edges(lone_task: Task, form: str) -> None:
    """Through the split, the order of the prepared edges, sampling, trimming, and each split's own messages."""
    parts = [some_links()] if form == "one graph" else list(split())
    if form == "splits with other messages":
        parts[2].edge_index = torch.cat([parts[2].edge_index, parts[0].edge_index[:, :40].flip(0)], 1)
    given = [with_attributes(part) for part in parts]
    graph = link_graph(given[0] if len(given) == 1 else given, "my:load")
    of_pairs: dict[tuple[int, ...], list[float]] = {}
    for part in given:
        for pair, weight, attributes in zip(part.edge_index.t(), part.edge_weight, part.edge_attr, strict=True):
            of_pairs.setdefault(tuple(pair.tolist()), []).append(float(weight + 7 * attributes[0] + 9 * attributes[1]))
    for messages in (graph, *other_messages(graph).values()):
        assert messages.edge_weight is not None
        assert messages.edge_attr is not None
        mixed = messages.edge_weight + messages.edge_attr @ torch.tensor([7.0, 9.0])
        for pair, value in zip(messages.edge_index.t().tolist(), mixed.tolist(), strict=True):
            assert min(abs(value - one) for one in of_pairs[tuple(pair)]) < 1e-5
    trained = objective(graph, lone_task, model="users:Weighted", batch_size=512)
    (batch, *_) = EpochPlan(trained.seeds, 512, 0, 0, 1).batches(1)
    prepared = trained.prepare(batch)
    loss = trained.loss(batch, prepared)
    loss.backward()  # type: ignore[no-untyped-call]
    trained.model.eval()
    scores = trained.evaluate(["val", "test"])
    for which, score in scores.items():
        messages = other_messages(graph).get(which, graph)
        assert messages.edge_weight is not None
        assert messages.edge_attr is not None
        with torch.no_grad():
            attributes = messages.edge_weight.double(), messages.edge_attr.double()
            z = trained.model.encode(graph.x.double(), messages.edge_index, *attributes)
            pairs = [getattr(graph, name).long() for name in (which, f"{which}_negatives")]
            assert score == auc(*(trained.model.decode(z, side).view(-1) for side in pairs))


@pytest.mark.parametrize("metric", ["roc_auc", "mrr"])
def test_scores_that_are_nan_are_refused(graph: LinkGraph, lone_task: Task, metric: str) -> None:
    trained = objective(graph, lone_task, model="users:Pygs", metric=metric)
    trained.model.mlp.bias.data.fill_(torch.nan)  # type: ignore[operator, union-attr]
    with pytest.raises(TaskError, match="the model gives NaN for [0-9]+ of [0-9]+ examples in evaluation"):
        trained.evaluate(["val"])


def test_attributes_that_the_model_does_not_take_are_named(lone_task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    trained = objective(link_graph(with_attributes(some_links()), "my:load"), lone_task, model="users:Pygs")
    assert "users:Pygs does not take edge_weight and edge_attr: not used" in capsys.readouterr().out
    assert trained._graph.edge_attr is None
    train, val, test = map(with_attributes, split())
    del val.edge_attr
    with pytest.raises(TaskError, match="val: it has no edge_attr that can be used, and others have"):
        link_graph((train, val, test), "my:load")
    del train.edge_attr
    with pytest.raises(TaskError, match="train: it has no edge_attr that can be used, and others have"):
        link_graph((train, test, val), "my:load")


def test_what_is_for_several_types_is_named_or_refused(
    graph: LinkGraph, users: types.ModuleType, lone_task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    objective(graph, lone_task, embedding_width=7)
    assert "train.embedding_width is not used: the data has one type of nodes" in capsys.readouterr().out
    encode = lambda self, x_dict, edge_index_dict: x_dict  # noqa: E731
    users.Net = type("Net", (Pygs,), {"encode": encode})  # type: ignore[attr-defined]
    with pytest.raises(TaskError, match="the data has one type of nodes and edges") as caught:
        objective(graph, lone_task, model="users:Net")
    assert caught.value.hint == "return HeteroData from data.load"


@pytest.mark.parametrize("model", ["autoencoder", "variational"])
def test_pygs_autoencoders_have_the_losses_of_their_examples(
    graph: LinkGraph, lone_task: Task, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Theirs is twice the mean over as many pairs with and without an edge; that of VGAE has a divergence."""
    trained = objective(graph, lone_task, model=f"users:{model}", batch_size=64)
    (batch, *_) = EpochPlan(trained.seeds, 64, 0, 0, 1).batches(1)
    prepared = trained.prepare(batch)
    trained.model.train()
    loss = trained.loss(batch, prepared)
    net: Any = trained.model
    (sample,) = prepared.hops
    torch.manual_seed(0)
    trained.own_training.begin_step(trained._seed, batch.epoch, batch.step)  # the same random numbers
    z = net.encode(graph.x.double()[sample.places], sample.edge_index)
    positive, negative = (
        prepared.scored.pairs[:, prepared.scored.y == 1],
        prepared.scored.pairs[:, prepared.scored.y == 0],
    )
    expected = net.recon_loss(z, positive, negative) / 2
    if model == "variational":
        expected = expected + net.kl_loss() / graph.num_nodes
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=0)
    assert ("kl_loss() is added" in capsys.readouterr().out) == (model == "variational")
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in net.parameters())
    net.eval()
    score = trained.evaluate(["test"])["test"]
    with torch.no_grad():
        z = net.encode(graph.x.double(), graph.edge_index)
        pairs = [getattr(graph, name).long() for name in ("test", "test_negatives")]
        assert score == auc(*(net.decode(z, side, sigmoid=False) for side in pairs))


@pytest.mark.parametrize("metric", ["mrr", "hits@2", "roc_auc"])
def test_each_pair_may_have_negatives_of_its_own(lone_task: Task, metric: str) -> None:
    parts = list(split())
    generator = torch.Generator().manual_seed(2)
    for part, each in zip(parts[1:], (5, 3), strict=True):
        part.edge_label_index, part.edge_label = pairs_of(part, 1), None
        part.dst_neg_index = torch.randint(60, (part.edge_label_index.size(1), each), generator=generator)
    graph = link_graph(parts, "my:load")
    assert (graph.val_each, graph.test_each) == (5, 3)
    trained = objective(graph, lone_task, model="users:Pygs", metric=metric)
    trained.model.eval()
    for part, score in zip(parts[1:], trained.evaluate(["val", "test"]).values(), strict=True):
        with torch.no_grad():
            z = Pygs.encode(trained.model, part.x.double(), part.edge_index)
            sources, targets = part.edge_label_index
            others = torch.stack([sources[:, None].expand_as(part.dst_neg_index), part.dst_neg_index]).flatten(1)
            positive = Pygs.decode(trained.model, z, torch.stack([sources, targets])).view(-1)
            rows = Pygs.decode(trained.model, z, others).view(len(sources), -1)
        above, ties = (rows > positive[:, None]).sum(1), (rows == positive[:, None]).sum(1)
        expected = {
            "mrr": float((1 / (1 + above + ties / 2)).double().mean()),
            "hits@2": float((above + ties < 2).double().mean()),
        }
        if metric == "roc_auc":
            assert score == auc(positive, rows.flatten())
        else:
            assert score.value == pytest.approx(expected[metric], rel=1e-6)
    with pytest.raises(TaskError, match="but test has 3 pairs without an edge for each with one: all would be hits"):
        objective(graph, lone_task, model="users:Pygs", metric="hits@4")


SPLIT = split()
PAIRS = SPLIT[1].edge_label.numel()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"edge_label_index": None, "edge_label": None}, "val: it has no edge_label_index"),
        ({"edge_label_index": torch.full((2, PAIRS), 60)}, "val: edge_label_index has sources from 60 to 60, beyond"),
        ({"edge_label_index": torch.zeros(2, PAIRS)}, "val: edge_label_index is float32"),
        ({"edge_label_index": torch.zeros(PAIRS, 2, dtype=torch.int64)}, "val: edge_label_index has shape"),
        ({"edge_label": torch.ones(3)}, "val: edge_label has shape .3., and edge_label_index has"),
        ({"edge_label": torch.full((PAIRS,), 4.5)}, "val: edge_label has values such as 4.5"),
        ({"edge_label": torch.zeros(PAIRS)}, "val: no pair has an edge"),
        ({"x": torch.zeros(60, 2)}, "val: x is not that of train"),
        ({"x": None}, "val: it has no x"),
        ({"edge_index": None}, "val: it has no edge_index"),
        ({"dst_neg_index": torch.zeros(3, 2).long()}, "val: it has pairs without an edge twice: dst_neg_index, and"),
        ({"edge_label": None, "dst_neg_index": torch.zeros(3, 2).long()}, "val: dst_neg_index has shape .3, 2., and"),
        (
            {"edge_label": None, "dst_neg_index": torch.full((PAIRS, 2), 60)},
            "val: dst_neg_index has targets from 60 to 60, beyond",
        ),
        ({"edge_label": None, "dst_neg_index": torch.zeros(PAIRS, 2)}, "val: dst_neg_index is float32"),
    ],
)
def test_a_wrong_split_is_refused(changes: dict[str, Any], words: str) -> None:
    train, val, test = split()
    for name, value in changes.items():
        val[name] = value
    with pytest.raises(TaskError, match=words) as refused:
        link_graph((train, val, test), "my:load")
    assert refused.value.hint


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (SPLIT[:2], "it returned 2 graphs"),
        (SPLIT[0], "it returned one graph with edge_label_index"),
        ([HeteroData()] * 3, "it returned HeteroData"),
        ({"train": SPLIT[0], "test": SPLIT[2]}, "it returned dict with train, test"),
        ([[SPLIT[0]], [SPLIT[1]], [SPLIT[2]]], "it returned 3 graphs"),
    ],
)
def test_what_is_no_split_graph_is_refused(result: Any, words: str) -> None:
    with pytest.raises(TaskError, match=words) as refused:
        link_graph(result, "my:load")
    assert refused.value.hint


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("OldDecoder", {}, r"decode\(z, pos_edge_index, neg_edge_index\): it must take two arguments"),
        ("adversarial", {}, "has a discriminator, which needs a second optimizer"),
        ("Weighted", {}, "encode needs edge_weight, which the data does not have"),
        ("StarredDecoder", {}, r"decode\(\*others\): it must take two arguments"),
        ("WideDecoder", {}, r"decode gives a tensor \[32, 8\]"),
        ("BrokenDecoder", {}, r"decode fails on 32 pairs, rows .*test_own_link_model.py, line"),
        ("Labelled", {}, "encode.* edge_label"),
        ("Pygs", {"metric": "hits@5000"}, "train.metric = hits@5000, but val has [0-9]+ pairs without an edge"),
        ("Pygs", {"negatives": 0}, "train.negatives = 0, and the data has no pairs"),
    ],
)
def test_a_wrong_model_or_setting_is_reported(
    graph: LinkGraph, lone_task: Task, model: str, options: dict[str, Any], words: str
) -> None:
    def step() -> None:
        trained = objective(graph, lone_task, model=f"users:{model}", **options)
        (batch, *_) = EpochPlan(trained.seeds, 16, 0, 0, 1).batches(1)
        trained.loss(batch, trained.prepare(batch))

    with pytest.raises(TaskError, match=words):
        step()


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
