"""The examples in docs/examples/pyg reach what a plain loop with PyG reaches with the same classes: five seeds each.

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
from statistics import mean
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.utils import negative_sampling

from clusterctl.engine.task.task import Task
from clusterctl.engine.workloads import graph_classification, link_prediction, node_classification
from clusterctl.shared.node.events import Context
from clusterctl.shared.record.metrics import Role, metric_of

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples" / "pyg"
WORKLOADS = {
    "graph-classification": graph_classification,
    "link-prediction": link_prediction,
    "node-classification": node_classification,
}
# Beside PyG: training/test_typed_models.py, test_typed_links.py
SEVERAL_TYPES = {"hgt", "purchases", "rgcn", "shop", "to_hetero_sage"}
NAMES = sorted({path.stem for path in EXAMPLES.glob("*.toml")} - SEVERAL_TYPES)
SEEDS = range(5)


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


def of_nodes(module: Any, data: Any, train: dict[str, Any], _: int) -> float:
    if isinstance(data, tuple):  # three lists of graphs
        graphs = [graph for part in data for graph in part]
        offsets = torch.tensor([0, *(graph.num_nodes for graph in graphs)]).cumsum(0)
        part_of = torch.tensor([number for number, part in enumerate(data) for _ in part])
        split = part_of.repeat_interleave(offsets.diff())
        data = Data(
            x=torch.cat([graph.x for graph in graphs]),
            y=torch.cat([graph.y for graph in graphs]),
            edge_index=torch.cat([graph.edge_index + start for graph, start in zip(graphs, offsets, strict=False)], 1),
            train_mask=split == 0,
            test_mask=split == 2,
        )
    several = data.y.dim() == 2
    model = made(module, train, data.num_features, data.y.size(1) if several else int(data.y.max()) + 1)
    loss_of: Callable[..., Tensor] = F.binary_cross_entropy_with_logits if several else F.cross_entropy
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
    if not several:
        return float((rows.argmax(1) == y).double().mean())
    right = ((rows > 0) & (y > 0)).sum()
    return float(2 * right / ((rows > 0).sum() + (y > 0).sum()))


def of_graphs(module: Any, graphs: Any, train: dict[str, Any], seed: int) -> float:
    if isinstance(graphs, tuple):
        training, _, testing = graphs
    else:
        order = torch.randperm(len(graphs), generator=torch.Generator().manual_seed(seed)).tolist()
        testing, training = ([graphs[number] for number in part] for part in (order[:20], order[40:]))
    is_number = training[0].y.is_floating_point()
    model = made(module, train, training[0].x.size(1), 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=train.get("lr", 1e-3))
    for _ in range(train["epochs"]):
        model.train()
        for batch in DataLoader(training, train.get("batch_size", 32), shuffle=True):
            optimizer.zero_grad()
            scores = call(model, batch)
            loss = F.l1_loss(scores, batch.y) if is_number else F.cross_entropy(scores, batch.y)
            loss.backward()
            optimizer.step()
    model.eval()
    (batch,) = DataLoader(testing, len(testing))
    scores = call(model, batch).detach()
    return float((scores - batch.y).abs().mean() if is_number else (scores.argmax(1) == batch.y).double().mean())


def of_links(module: Any, parts: Any, train: dict[str, Any], _: int) -> float:
    """The pairs of a step pass no messages in it, in either direction."""
    data, _val, test = parts
    model: Any = made(module, train, data.num_features, 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=train.get("lr", 0.01))
    keys, examples = data.edge_index[0] * data.num_nodes + data.edge_index[1], data.edge_label_index
    for _epoch in range(train["epochs"]):
        model.train()
        for numbers in torch.randperm(examples.size(1)).split(128):
            optimizer.zero_grad()
            pairs = examples[:, numbers]
            others = negative_sampling(data.edge_index, data.num_nodes, train["negatives"] * len(numbers))
            both = torch.cat([pairs, pairs.flip(0)], 1)
            passing = data.edge_index[:, ~torch.isin(keys, both[0] * data.num_nodes + both[1])]
            seeds, places = torch.cat([pairs, others], 1).unique(return_inverse=True)
            piece = sampled(data, seeds, train["fan_out"], passing)
            scores = model.decode(model.encode(piece.x, piece.edge_index), places)
            wanted = (torch.arange(len(scores)) < len(numbers)).float()
            F.binary_cross_entropy_with_logits(scores, wanted).backward()
            optimizer.step()
    model.eval()
    z = model.encode(test.x, test.edge_index)
    scores = model.decode(z, test.edge_label_index)
    positive, negative = (scores[test.edge_label == label] for label in (1, 0))
    return float((positive > negative.topk(20).values[-1]).double().mean())


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
    """The means differ by no more than the seeds do: by less than the wider of the two spreads."""
    monkeypatch.syspath_prepend(EXAMPLES)
    record = tomllib.loads((EXAMPLES / f"{name}.toml").read_text())
    module, loop = import_module(name), LOOPS[record["workload"]]
    data, ours, plain = module.load(None), [], []  # loading seeds torch
    for seed in SEEDS:
        ours.append(by_clusterctl(name, record, seed, lone_task))
        torch.manual_seed(seed)
        plain.append(loop(module, data, record["train"], seed))
    print(f"{name}: ours {[round(one, 4) for one in ours]}, plain {[round(one, 4) for one in plain]}")
    spread = max(max(scores) - min(scores) for scores in (ours, plain))
    assert abs(mean(ours) - mean(plain)) <= spread, (ours, plain)
