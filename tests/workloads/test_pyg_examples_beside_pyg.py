"""The examples in docs/examples/pyg train like a plain loop with PyG and the same classes, in each step and in the end.

The loops here are as PyG's examples write them, with a sampler of their own, since PyG's needs pyg-lib.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric import seed_everything
from torch_geometric.data import Batch as Many
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.utils import negative_sampling

from clusterctl.engine.graph.blocks import Adjacency
from clusterctl.engine.graph.links import negatives
from clusterctl.engine.graph.storage import compressed
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import Batch, EpochPlan
from clusterctl.engine.training.learner import Learner
from clusterctl.engine.workloads import graph_classification, link_prediction, node_classification
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.metrics import Role, metric_of
from clusterctl.shared.spec import Batches, TrainingSet

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples" / "pyg"
WORKLOADS = {
    "graph-classification": graph_classification,
    "link-prediction": link_prediction,
    "node-classification": node_classification,
}
# Beside PyG: training/test_typed_models.py, test_typed_links.py
SEVERAL_TYPES = {"hgt", "purchases", "rgcn", "shop", "to_hetero_sage"}
NAMES = sorted({path.stem for path in EXAMPLES.glob("*.toml")} - SEVERAL_TYPES)
ALWAYS = ("gatv2", "link_mlp")
SEEDS = range(6)
ONE_SIDED = 4.03  # standard errors of a mean of six that one in a hundred exceeds by chance (Student's t)
SMALL = 0.01  # a difference of scores that may have one side
StepLoss = Callable[[Batch], Tensor]


class Compared(Exception):
    """Ends a workload."""


class Scores:
    """Keeps the test score that a training writes."""

    def __init__(self) -> None:
        self.score = float("nan")

    def write(self, **values: float) -> None:
        for name, value in values.items():
            if metric_of(name).role is Role.RESULT and not name.endswith("_deviation"):
                self.score = value

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def by_clusterctl(name: str, record: dict[str, Any], seed: int, task: Task) -> float:
    context = Context({**record, "name": name, "train": {**record["train"], "seed": seed}})
    workload: Any = WORKLOADS[context.job.workload]
    scores = Scores()

    @contextmanager
    def alone(_: Context) -> Iterator[Task]:
        yield replace(task, metrics=scores)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workload, "joined", alone)
        workload.main(context)
    return scores.score


# The plain loops.


def made(module: Any, train: dict[str, Any], features: int, outputs: int) -> torch.nn.Module:
    make = getattr(module, train["model"].partition(":")[2])
    given = {"num_layers": len(train.get("fan_out", (0, 0)))}
    given |= {"in_channels": features, "out_channels": outputs, "num_features": features, "num_classes": outputs}
    named = {name: value for name, value in given.items() if name in inspect.signature(make).parameters}
    return make(**{**named, **train.get("options", {})})  # type: ignore[no-any-return]


def call(model: Any, data: Data) -> Tensor:
    names = inspect.signature(model.forward).parameters
    if "data" in names:
        return model(data)  # type: ignore[no-any-return]
    return model(**{name: data[name] for name in names if name in data})  # type: ignore[no-any-return]


def sampled(data: Data, seeds: Tensor, fan_out: list[int], edge_index: Tensor | None = None) -> Data:
    """So many edges into each node of a hop, at random; the seeds are the first nodes."""
    whole = data.edge_index if edge_index is None else edge_index
    nodes, frontier, chosen = seeds, seeds, []
    for count in fan_out:
        into = torch.zeros(data.num_nodes, dtype=torch.bool).index_fill_(0, frontier, True)[whole[1]].nonzero().view(-1)
        into = into[torch.randperm(len(into))]
        into = into[whole[1, into].argsort(stable=True)]
        _, counts = whole[1, into].unique_consecutive(return_counts=True)
        first = (counts.cumsum(0) - counts).repeat_interleave(counts)
        into = into[torch.arange(len(into)) - first < count]
        chosen.append(into)
        known = torch.zeros(data.num_nodes, dtype=torch.bool).index_fill_(0, nodes, True)
        sources = whole[0, into].unique()
        frontier = sources[~known[sources]]
        nodes = torch.cat([nodes, frontier])
    edges = torch.cat(chosen).unique()
    row = torch.empty(data.num_nodes, dtype=torch.int64)
    row[nodes] = torch.arange(len(nodes))
    attributes = {name: data[name][edges] for name in ("edge_weight", "edge_attr") if name in data}
    return Data(x=data.x[nodes], edge_index=row[whole[:, edges]], **attributes)


def one_graph(data: Any) -> Data:
    """The graph, or the one of three lists of graphs."""
    if isinstance(data, Data):
        return data
    graphs = [graph for part in data for graph in part]
    offsets = torch.tensor([0, *(graph.num_nodes for graph in graphs)]).cumsum(0)
    part_of = torch.tensor([number for number, part in enumerate(data) for _ in part])
    split = part_of.repeat_interleave(offsets.diff())
    return Data(
        x=torch.cat([graph.x for graph in graphs]),
        y=torch.cat([graph.y for graph in graphs]),
        edge_index=torch.cat([graph.edge_index + start for graph, start in zip(graphs, offsets, strict=False)], 1),
        train_mask=split == 0,
        test_mask=split == 2,
    )


def for_nodes(module: Any, data: Data, train: dict[str, Any]) -> tuple[torch.nn.Module, Callable[..., Tensor]]:
    """The model and its loss."""
    if data.y.dim() == 2:
        return made(module, train, data.num_features, data.y.size(1)), F.binary_cross_entropy_with_logits
    return made(module, train, data.num_features, int(data.y.max()) + 1), F.cross_entropy


def of_nodes(module: Any, data: Any, train: dict[str, Any], _: int) -> float:
    data = one_graph(data)
    model, loss_of = for_nodes(module, data, train)
    optimizer = torch.optim.Adam(model.parameters(), lr=train.get("lr", 0.01))
    nodes = data.train_mask.nonzero().view(-1)
    for _epoch in range(train["epochs"]):
        model.train()
        is_whole = train.get("batch") == "graph"
        for seeds in [nodes] if is_whole else nodes[torch.randperm(len(nodes))].split(train.get("batch_size", 128)):
            optimizer.zero_grad()
            rows = call(model, data)[seeds] if is_whole else call(model, sampled(data, seeds, train["fan_out"]))
            loss_of(rows[: len(seeds)], data.y[seeds]).backward()
            optimizer.step()
    model.eval()
    rows, y = call(model, data)[data.test_mask], data.y[data.test_mask]
    if y.dim() == 1:
        return float((rows.argmax(1) == y).double().mean())
    right = ((rows > 0) & (y > 0)).sum()
    return float(2 * right / ((rows > 0).sum() + (y > 0).sum()))


def of_graphs(module: Any, graphs: Any, train: dict[str, Any], seed: int) -> float:
    if isinstance(graphs, tuple):
        training, _, testing = graphs
    else:
        order = torch.randperm(len(graphs), generator=torch.Generator().manual_seed(seed)).tolist()
        testing, training = ([graphs[number] for number in part] for part in (order[:20], order[40:]))
    model = made(module, train, training[0].x.size(1), 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=train.get("lr", 1e-3))
    for _ in range(train["epochs"]):
        model.train()
        for batch in DataLoader(training, train.get("batch_size", 32), shuffle=True):
            optimizer.zero_grad()
            loss_of_graphs(call(model, batch), batch.y).backward()
            optimizer.step()
    model.eval()
    (batch,) = DataLoader(testing, len(testing))
    scores, y = call(model, batch).detach(), batch.y
    return float((scores - y).abs().mean() if y.is_floating_point() else (scores.argmax(1) == y).double().mean())


def loss_of_graphs(scores: Tensor, y: Tensor) -> Tensor:
    return F.l1_loss(scores, y) if y.is_floating_point() else F.cross_entropy(scores, y)


def passing_without(data: Data, pairs: Tensor) -> Tensor:
    """The edges of the graph that connect none of these pairs, in either direction."""
    both, (sources, targets) = torch.cat([pairs, pairs.flip(0)], 1), data.edge_index
    hidden = torch.isin(sources * data.num_nodes + targets, both[0] * data.num_nodes + both[1])
    return data.edge_index[:, ~hidden]


def loss_of_links(model: Any, piece: Data, places: Tensor, edges: int) -> Tensor:
    """Of pairs of rows, the first `edges` of which have an edge."""
    scores = model.decode(model.encode(piece.x, piece.edge_index), places)
    return F.binary_cross_entropy_with_logits(scores, (torch.arange(len(scores)) < edges).to(scores.dtype))


def of_links(module: Any, parts: Any, train: dict[str, Any], _: int) -> float:
    """The pairs of a step pass no messages in it, in either direction."""
    data, _val, test = parts
    model: Any = made(module, train, data.num_features, 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=train.get("lr", 0.01))
    for _epoch in range(train["epochs"]):
        model.train()
        for pairs in data.edge_label_index[:, torch.randperm(data.edge_label_index.size(1))].split(128, dim=1):
            optimizer.zero_grad()
            others = negative_sampling(data.edge_index, data.num_nodes, train["negatives"] * pairs.size(1))
            seeds, places = torch.cat([pairs, others], 1).unique(return_inverse=True)
            piece = sampled(data, seeds, train["fan_out"], passing_without(data, pairs))
            loss_of_links(model, piece, places, pairs.size(1)).backward()
            optimizer.step()
    model.eval()
    z = model.encode(test.x, test.edge_index)
    scores = model.decode(z, test.edge_label_index)
    positive, negative = (scores[test.edge_label == label] for label in (1, 0))
    return float((positive > negative.topk(20).values[-1]).double().mean())


# The steps of the plain loops in float64, with all neighbours, for given batches.


def steps_on_nodes(module: Any, data: Any, train: dict[str, Any]) -> tuple[Any, StepLoss]:
    data = in_float64(one_graph(data))
    model, loss_of = for_nodes(module, data, train)
    return model, lambda batch: loss_of(call(model, data)[batch.seeds], data.y[batch.seeds])


def steps_on_graphs(module: Any, graphs: Any, train: dict[str, Any]) -> tuple[Any, StepLoss]:
    graphs = [in_float64(graph) for part in graphs for graph in (part if isinstance(graphs, tuple) else [part])]
    model = made(module, train, graphs[0].x.size(1), 2)

    def loss(batch: Batch) -> Tensor:
        chosen = Many.from_data_list([graphs[number] for number in batch.seeds])
        return loss_of_graphs(call(model, chosen), chosen.y)

    return model, loss


def steps_on_links(module: Any, parts: Any, train: dict[str, Any]) -> tuple[Any, StepLoss]:
    """With negatives that clusterctl draws: whether they are pairs without an edge is seen here, too."""
    data = in_float64(parts[0])
    model = made(module, train, data.num_features, 0)
    known = Adjacency(*compressed(data.edge_index, data.num_nodes))

    def loss(batch: Batch) -> Tensor:
        pairs, nodes, each = data.edge_label_index[:, batch.seeds], data.num_nodes, train["negatives"]
        others = torch.stack(negatives(known, nodes, batch.seeds, 0, batch.epoch, each, distinct=True))
        assert not (others[0] == others[1]).any()
        assert torch.equal(passing_without(data, others), data.edge_index)
        whole = Data(x=data.x, edge_index=passing_without(data, pairs))
        return loss_of_links(model, whole, torch.cat([pairs, others], 1), pairs.size(1))

    return model, loss


def in_float64(data: Data) -> Data:
    return data.clone().apply(lambda values: values.double() if values.is_floating_point() else values)  # type: ignore[no-any-return]


STEPS: dict[str, Callable[[Any, Any, dict[str, Any]], tuple[Any, StepLoss]]] = {
    "graph-classification": steps_on_graphs,
    "link-prediction": steps_on_links,
    "node-classification": steps_on_nodes,
}


@pytest.mark.parametrize(
    "name", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.long) for name in NAMES]
)
def test_an_example_has_the_gradients_of_a_plain_loop_on_the_same_batches(
    name: str, lone_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same gradients in every step, in float64, without dropout, with all neighbours.

    `training/test_adam.py` has the update. It would amplify rounding where a gradient is nearly zero.
    """
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(F, "dropout", lambda x, *_, **__: x)
    record = tomllib.loads((EXAMPLES / f"{name}.toml").read_text())
    hops = {"fan_out": [-1] * len(record["train"]["fan_out"])} if "fan_out" in record["train"] else {}
    record["train"] |= {"precision": "float64", **hops}
    module = import_module(name)
    if hasattr(module, "dropout"):  # that of clusterctl.pyg
        monkeypatch.setattr(module, "dropout", F.dropout)
    steps = 0

    def beside(objective: Any, train: Any, task: Task, *_: Any) -> None:
        nonlocal steps
        model, loss_of = STEPS[record["workload"]](module, module.load(None), record["train"])
        model.double()
        learner = Learner(objective, train, task)
        size = Batches(train, 1, TrainingSet(objective.seeds.numel(), objective.unit_of_seeds)).size
        plan = EpochPlan(objective.seeds, size, train.seed, 0, 1)
        objective.model.train()
        for batch in (batch for epoch in (1, 2) for batch in plan.batches(epoch)):
            model.load_state_dict(objective.model.state_dict())
            model.zero_grad()
            loss_of(replace(batch, seeds=batch.seeds[: batch.total])).backward()
            learner.train_step(batch, objective.prepare(batch), 1.0, checkpoint_due=False)
            for (part, ours), theirs in zip(objective.model.named_parameters(), model.parameters(), strict=True):
                assert torch.allclose(ours.grad, theirs.grad, rtol=0, atol=1e-9), (part, batch.epoch, batch.step)
            steps += 1
        raise Compared

    workload: Any = WORKLOADS[record["workload"]]

    @contextmanager
    def alone(_: Context) -> Iterator[Task]:
        yield lone_task

    monkeypatch.setattr(workload, "joined", alone)
    monkeypatch.setattr(workload, "fit", beside)
    with pytest.raises(Compared):
        workload.main(Context({**record, "name": name}))
    assert steps >= 2


LOOPS: dict[str, Callable[[Any, Any, dict[str, Any], int], float]] = {
    "graph-classification": of_graphs,
    "link-prediction": of_links,
    "node-classification": of_nodes,
}


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_an_example_reaches_what_a_plain_loop_with_pyg_reaches(
    name: str, lone_task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The means differ by no more than the seeds do, and not in one direction for all seeds beyond chance."""
    monkeypatch.syspath_prepend(EXAMPLES)
    record = tomllib.loads((EXAMPLES / f"{name}.toml").read_text())
    module, loop = import_module(name), LOOPS[record["workload"]]
    data, ours, plain = module.load(None), [], []  # loading seeds torch
    for seed in SEEDS:
        ours.append(by_clusterctl(name, record, seed, lone_task))
        seed_everything(seed)  # PyG's negative_sampling draws from Python's generator
        plain.append(loop(module, data, record["train"], seed))
    print(f"{name}: ours {[round(one, 4) for one in ours]}, plain {[round(one, 4) for one in plain]}")
    spread = max(max(scores) - min(scores) for scores in (ours, plain))
    difference = abs(mean(ours) - mean(plain))
    assert difference <= spread, (ours, plain)
    error = stdev(one - other for one, other in zip(ours, plain, strict=True)) / len(SEEDS) ** 0.5
    assert difference <= max(SMALL, ONE_SIDED * error), (ours, plain)
