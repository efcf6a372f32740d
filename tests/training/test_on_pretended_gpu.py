"""Every workload on a fake GPU: devices are never mixed, and a step synchronizes only to read its loss.

Sampling, forward and evaluation run on tensors that claim to be on a GPU. The whole step, with its backward, runs on
the CPU, and every synchronization is counted as if the tensors were on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import pytest
import torch
from support.made_graphs import bare_academy, dated_academy, random_academy, random_shop
from support.own_nets import molecules, split_links, split_shop
from support.pretended_gpu import GPU, counted
from support.pretended_streams import Streams

from clusterctl.engine.data.graph_sets import collection_of
from clusterctl.engine.data.own_links import link_graph, typed_link_graph
from clusterctl.engine.graph import sampling
from clusterctl.engine.graph.collection import Collection, joined_graphs
from clusterctl.engine.graph.storage import Graph, LabelledHeteroGraph, compressed
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import EpochPlan
from clusterctl.engine.training.learner import Learner
from clusterctl.engine.training.loop import prefetched
from clusterctl.engine.training.objective import Objective
from clusterctl.engine.training.objectives import node as node_objective
from clusterctl.engine.training.objectives.graph import GraphClassification, OwnGraphClassification
from clusterctl.engine.training.objectives.link import LinkPrediction
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.engine.training.objectives.own_link import OwnLinkPrediction
from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
from clusterctl.engine.training.objectives.relation import RelationNodeClassification
from clusterctl.engine.training.objectives.typed_link import TypedLinkPrediction
from clusterctl.engine.training.objectives.typed_node import TypedNodeClassification
from clusterctl.shared.spec import (
    DeepSageTrain,
    GraphClassificationTrain,
    LinkPredictionTrain,
    LoopTrain,
    NodeClassificationTrain,
    RedditTrain,
    SyntheticTrain,
    TaobaoTrain,
)

MakeGraph = Callable[..., Graph]
SMALL: dict[str, Any] = {"batch_size": 8, "seed": 1}


class Workload(NamedTuple):
    train: LoopTrain
    objective: Callable[[Any, Any, Task], Objective[Any]]
    sampling_syncs: bool = False  # it reads sizes, in the thread that prepares batches
    reads: int = 0  # in a step on the CPU: whether the loss of a user's model is finite, and what its layers read
    made: Callable[[], Any] | None = None  # the data; without it, a random graph of one type


def graphs_of(collection: Collection, train: GraphClassificationTrain, task: Task) -> Objective[Any]:
    return GraphClassification(collection, train, task, fold=0)


def numbered(graph: LabelledHeteroGraph) -> LabelledHeteroGraph:
    """The graph with a number for each edge."""
    return replace(graph, edge_attr={relation: torch.sin(own + 1.0) for relation, own in graph.indices.items()})


def own(net: str, objective: Any, made: Callable[[], Any] | None = None, kind: Any = None, **others: Any) -> Workload:
    """A user's model."""
    kind = kind or NodeClassificationTrain
    is_sampled = kind is not GraphClassificationTrain and others.get("batch") != "graph"
    sampled = {"fan_out": (3, 2)} if is_sampled else {}
    train = kind(**{"model": f"support.own_nets:{net}", **sampled, **SMALL, **others})
    return Workload(train, objective, sampling_syncs=is_sampled, reads=1, made=made)


NODES: dict[str, Any] = {"hidden_channels": 8, "fan_out": (3, 2), **SMALL}
WORKLOADS = {
    "synthetic": Workload(SyntheticTrain(**NODES), NodeClassification),
    "reddit": Workload(RedditTrain(**NODES), NodeClassification),
    "reddit, cached": Workload(RedditTrain(cache_first_aggregation=True, **NODES), NodeClassification),
    "reddit, LABOR": Workload(RedditTrain(sampling="labor", **NODES), NodeClassification),
    "deep-sage": Workload(DeepSageTrain(hidden_channels=8, fan_out=(3, 2, 2), **SMALL), NodeClassification),
    "gat": Workload(
        NodeClassificationTrain(model="gat", options={"hidden": 4, "attention_dropout": 0.5}, fan_out=(3, 2), **SMALL),
        OwnNodeClassification,
        reads=1,
    ),
    "imdb-gin": Workload(GraphClassificationTrain(hidden_channels=8, **SMALL), graphs_of),
    "taobao": Workload(
        TaobaoTrain(hidden_channels=8, fan_out=(3, 2), **SMALL), LinkPrediction, sampling_syncs=True, made=random_shop
    ),
    "own layers": own("Gat", OwnNodeClassification),
    "own forward": own("Keyed", OwnNodeClassification, options={"hidden_channels": 8}),
    "own forward, whole graph": own("Keyed", OwnNodeClassification, options={"hidden_channels": 8}, batch="graph"),
    "rgat": Workload(
        NodeClassificationTrain(model="rgat", options={"hidden": 4}, embedding_width=5, fan_out=(3, 2), **SMALL),
        RelationNodeClassification,
        sampling_syncs=True,
        made=lambda: bare_academy("author", dtype=torch.float32),
    ),
    "own types": own(
        "NumberedTyped", TypedNodeClassification, lambda: numbered(bare_academy("author", dtype=torch.float32))
    ),
    "own layers of types": own("TypedLayers", TypedNodeClassification, lambda: random_academy(torch.float32)),
    "own times": own("SizedTyped", TypedNodeClassification, lambda: dated_academy(edges_too=True, dtype=torch.float32)),
    "own latest": own(
        "NumberedTyped",
        TypedNodeClassification,
        lambda: numbered(dated_academy(dtype=torch.float32)),
        temporal_strategy="last",
    ),
    "own links": own("LinkNet", OwnLinkPrediction, lambda: link_graph(split_links(), "load"), LinkPredictionTrain),
    "own links of types": own(
        "SizedShopNet", TypedLinkPrediction, lambda: typed_link_graph(split_shop(), "load"), LinkPredictionTrain
    ),
    "own graphs": own(
        "MoleculeNet",
        OwnGraphClassification,
        lambda: collection_of(molecules(), "load", answers="numbers"),
        GraphClassificationTrain,
        loss="l1",
    ),
}


MORE = {"own layers", "own layers of types", "own times"}  # the same as others in most of their ways


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.long) if name in MORE else name for name in WORKLOADS])
def workload(request: pytest.FixtureRequest) -> Workload:
    return WORKLOADS[request.param]


@pytest.fixture
def data(workload: Workload, random_graph: MakeGraph) -> Any:
    if workload.made:
        return workload.made()
    if isinstance(workload.train, GraphClassificationTrain):
        sizes = torch.randint(3, 7, (40,), generator=torch.Generator().manual_seed(0)).tolist()
        bounds, edges = joined_graphs([(size, torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])) for size in sizes])
        nodes = int(bounds[-1])
        return Collection(bounds, *compressed(edges, nodes), torch.empty(nodes, 0), torch.arange(40) % 2, 2)
    graph = random_graph(nodes=40, edges=300)
    return replace(graph, x=graph.x.float())


def settled(objective: Objective[Any]) -> Objective[Any]:
    """An objective as after its first steps, one of which reads the scores to warn of a sigmoid."""
    if loss := getattr(objective, "_loss", None):
        loss._may_be_probabilities = False
    return objective


def test_sampling_forward_and_evaluation_stay_on_the_gpu(
    workload: Workload, data: Any, lone_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    Streams().install(monkeypatch)
    task = replace(lone_task, device=GPU)
    with torch.no_grad(), counted(GPU) as syncs:
        objective = settled(workload.objective(data, workload.train, task))
        batch = next(EpochPlan(objective.seeds, 8, 0, 0, 1).batches(1))
        syncs.clear()
        prepared = objective.prepare(batch)
        assert bool(syncs) == workload.sampling_syncs, syncs
        syncs.clear()
        assert objective.loss(batch, prepared).device == GPU
        assert not syncs
        objective.model.eval()
        scores = objective.evaluate(["val", "test"])
    twin = workload.objective(data, workload.train, lone_task)
    twin.model.eval()
    assert twin.evaluate(["val", "test"]) == scores


def test_batches_prepared_beside_the_steps_are_in_order_with_them(
    workload: Workload, data: Any, lone_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = Streams()
    streams.install(monkeypatch)
    task = replace(lone_task, device=GPU)
    with torch.no_grad(), counted(GPU, streams):
        objective = workload.objective(data, workload.train, task)
        batches = islice(EpochPlan(objective.seeds, 8, 0, 0, 1).batches(1), 3)
        losses = []
        for batch, prepared in prefetched(batches, objective.prepare, GPU):
            losses.append(objective.loss(batch, prepared))
        found = torch.stack(losses).tolist()
    assert not streams.problems
    assert streams.threads["prefetch"] or getattr(workload.train, "batch", "") == "graph"
    assert bool(streams.asked) == workload.sampling_syncs
    twin = workload.objective(data, workload.train, lone_task)
    batches = islice(EpochPlan(twin.seeds, 8, 0, 0, 1).batches(1), 3)
    with torch.no_grad():
        expected = [float(twin.loss(batch, twin.prepare(batch))) for batch in batches]
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        "rgat",
        *(
            pytest.param(f"own {form}", marks=pytest.mark.long)
            for form in ("layers", "types", "latest", "links of types")
        ),
    ],
)
def test_features_on_disk_and_what_an_evaluation_writes_there_are_the_same_from_a_gpu(
    name: str, random_graph: MakeGraph, lone_task: Task, monkeypatch: pytest.MonkeyPatch, mapped: Any
) -> None:
    chosen = WORKLOADS[name]
    graph = chosen.made() if chosen.made else random_graph(nodes=40, edges=300)
    x = graph.x
    of_disk = {kind: mapped(one) for kind, one in x.items()} if isinstance(x, dict) else mapped(x.float())
    graph = replace(graph, x=of_disk)
    expected = on_disk(chosen, graph, lone_task)
    streams = Streams()
    streams.install(monkeypatch)
    with counted(GPU, streams):
        losses, scores = on_disk(chosen, graph, replace(lone_task, device=GPU))
    assert losses == pytest.approx(expected[0], rel=1e-5)
    assert scores == expected[1]
    assert not streams.problems
    assert streams.threads["gather"]


@torch.no_grad()
def on_disk(workload: Workload, graph: Any, task: Task) -> tuple[list[float], Any]:
    """The losses of some steps and the scores, with a few features in memory."""
    objective: Any = workload.objective(graph, workload.train, task, 400)  # type: ignore[call-arg]
    batches = islice(EpochPlan(objective.seeds, 8, 0, 0, 1).batches(1), 3)
    losses = [objective.loss(*pair) for pair in prefetched(batches, objective.prepare, task.device)]
    objective.model.eval()
    return torch.stack(losses).tolist(), objective.evaluate(["val", "test"])


def test_a_step_synchronizes_only_to_read_its_loss(
    workload: Workload, data: Any, lone_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The sizes of a sample are known beforehand on GPUs only.
    monkeypatch.setattr(node_objective, "worth_static", lambda _, *sizes: sampling.worth_static(GPU, *sizes))
    objective = settled(workload.objective(data, workload.train, lone_task))
    learner = Learner(objective, replace(workload.train, clip_norm=1.0), lone_task)
    for batch in islice(EpochPlan(objective.seeds, 8, 0, 0, 1).batches(1), 3):
        prepared = objective.prepare(batch)
        with counted(lone_task.device) as syncs:
            step = learner.train_step(batch, prepared, 1.0, checkpoint_due=False)
            assert len(syncs) == workload.reads, syncs
            step.reading.read()
        assert syncs[workload.reads :] == ["tolist"]


def test_mixed_devices_and_every_kind_of_synchronization_are_detected() -> None:
    synchronizing: list[Callable[[torch.Tensor], Any]] = [
        *(int, bool, torch.Tensor.tolist, torch.Tensor.item, torch.Tensor.cpu),
        lambda one: torch.equal(one, one),
        lambda one: one.view(1).nonzero(),
        lambda one: one.view(1).unique(),
        lambda one: one.view(1)[one.view(1) > 0],
        lambda one: one.view(1).repeat_interleave(one.view(1)),
        lambda one: one.view(1).bincount(),
        lambda one: torch.where(one > 0, one, 0),  # the number is copied to the GPU first
    ]
    with counted(GPU) as syncs:
        one = torch.ones((), dtype=torch.int64, device=GPU)
        for operation in synchronizing:
            syncs.clear()
            operation(one)
            assert len(syncs) >= 1
        syncs.clear()
        kept = one.view(1) + one
        kept[0] = 3
        assert not syncs
        with pytest.raises(RuntimeError, match="on the CPU and on the GPU"):
            kept + torch.ones(1)
        with pytest.raises(RuntimeError, match="on the CPU and on the GPU"):
            kept[torch.zeros(1, dtype=torch.int64)]
