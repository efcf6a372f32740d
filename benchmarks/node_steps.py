"""Training steps of node classification: ours, and PyG's on sampled subgraphs."""

from __future__ import annotations

import time
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from side_by_side import with_environment_of_a_run
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from clusterctl.engine.graph.blocks import rows_of
from clusterctl.engine.graph.sampling import NeighborSampler
from clusterctl.engine.task.task import Task
from clusterctl.engine.training.epoch_plan import EpochPlan
from clusterctl.engine.training.flat import FlatModel
from clusterctl.engine.training.learner import Adam
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.shared.node.events import Events
from clusterctl.shared.node.signals import StopRequest
from clusterctl.shared.record.metrics import MetricsWriter
from clusterctl.shared.record.place import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from side_by_side import Timed

    from clusterctl.engine.graph.storage import Graph
    from clusterctl.shared.spec import NodeClassificationTrain, NodeTrain

Sample = tuple["Callable[[], tuple[Tensor, Tensor, Tensor]]", float]
"""Fetches the rows' features, the edges between them and the labels of the first rows; seconds spent on sampling."""


def begin_alone(threads: int) -> None:
    """Become the only rank of a world of one, in the environment of a run, with so many threads."""
    with_environment_of_a_run(threads)
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def lone_task() -> Task:
    """The only rank of a world of size one, outside any run."""
    world = dist.group.WORLD
    assert world is not None
    silent = Events(None, 0), MetricsWriter(None, 0), StopRequest()
    return Task(Place(), torch.device("cpu"), world, Path("unused"), *silent)


def our_step(graph: Any, settings: NodeTrain | NodeClassificationTrain, kind: Any = NodeClassification) -> Timed:
    """Sampling, forward, backward and update, sequentially, for an objective of this `kind` on the graph.

    `fit` samples ahead in a thread, which would here run during the rival's time.
    """
    task = lone_task()
    objective = kind(graph, settings, task)
    flat = FlatModel(objective.model)
    optimizer = Adam(flat.values, flat.gradients, settings.lr, settings.weight_decay)
    plan = EpochPlan(graph.train, settings.batch_size or 0, seed=0, rank=0, world_size=1)
    batches = (batch for epoch in count() for batch in plan.batches(epoch))
    objective.model.train()

    def once() -> float:
        batch = next(batches)
        began = time.perf_counter()
        flat.backward(objective.loss(batch, objective.prepare(batch)), task.stop)
        optimizer.step()
        return time.perf_counter() - began

    return once


def pyg_model(graph: Graph, settings: NodeTrain) -> torch.nn.ModuleList:
    """PyG's convolutions with the same widths."""
    from torch_geometric.nn import GCNConv, SAGEConv

    kind = {"sage": SAGEConv, "gcn": GCNConv}[settings.model]
    widths = [graph.num_features, *[settings.hidden_channels] * (len(settings.fan_out) - 1), graph.num_classes]
    return torch.nn.ModuleList(kind(*pair) for pair in pairwise(widths))


def pyg_forward(layers: torch.nn.ModuleList, x: Tensor, edges: Tensor, dropout: float) -> Tensor:
    """The examples' forward pass: every layer computes all rows of the subgraph."""
    for layer in list(layers)[:-1]:
        x = F.dropout(layer(x, edges).relu(), dropout, training=layers.training)
    out: Tensor = layers[-1](x, edges)
    return out


def pyg_step(graph: Graph, settings: NodeTrain, samples: Iterator[Sample]) -> Timed:
    """The examples' step: fetch the sample's features, convolutions on all its rows, backward, Adam."""
    layers = pyg_model(graph, settings)
    optimizer = torch.optim.Adam(layers.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)

    def once() -> float:
        fetch, seconds = next(samples)
        began = time.perf_counter()
        x, edges, y = fetch()
        loss = F.cross_entropy(pyg_forward(layers, x, edges, settings.dropout)[: y.numel()], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return time.perf_counter() - began + seconds

    return once


def expert_step(graph: Graph, settings: NodeTrain, *, sparse: bool = False) -> Timed:
    """PyG as an expert uses it: only the edges and rows that each layer needs, and fused Adam.

    With `sparse`, its layers get edges as CSR matrices and multiply with torch.sparse.mm; only SAGEConv in float32 can.

    SAGEConv is bipartite; GCNConv has no such form, so it computes the rows of its sources and keeps the first ones.
    Uses autocast if the precision is bfloat16. Of the sampling, only fetching the features is timed.
    """
    layers = pyg_model(graph, settings)
    options = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    optimizer = torch.optim.Adam(layers.parameters(), fused=True, **options)
    samples = expert_samples(graph, settings)
    is_narrow = settings.precision == "bfloat16"

    def once() -> float:
        nodes, hops, y = next(samples)
        if sparse:
            hops = as_matrices(hops, nodes.numel())
        began = time.perf_counter()
        x = graph.x[nodes]
        with torch.autocast("cpu", torch.bfloat16, enabled=is_narrow):
            for number, (layer, (edges, rows)) in enumerate(zip(layers, hops, strict=True)):
                x = layer(x, edges)[:rows] if settings.model == "gcn" else layer((x, x[:rows]), edges)
                if number < len(layers) - 1:
                    x = F.dropout(x.relu(), settings.dropout)
            loss = F.cross_entropy(x.float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return time.perf_counter() - began

    return once


def as_matrices(hops: list[tuple[Tensor, int]], nodes: int) -> list[tuple[Tensor, int]]:
    """The edges of each layer, whose targets ascend, as a CSR matrix [rows, rows before]; the first reads `nodes`."""
    found = []
    for (sources, targets), rows in hops:
        bounds = torch.zeros(rows + 1, dtype=torch.int64)
        torch.cumsum(targets.bincount(minlength=rows), 0, out=bounds[1:])
        values, shape = torch.ones(sources.numel()), (rows, nodes)
        found.append((torch.sparse_csr_tensor(bounds, sources, values, shape, check_invariants=False), rows))
        nodes = rows
    return found


def expert_samples(
    graph: Graph, settings: NodeTrain | NodeClassificationTrain
) -> Iterator[tuple[Tensor, list[tuple[Tensor, int]], Tensor]]:
    """Nodes; for each layer, its edges and number of rows; and the labels of the seeds, by PyG's sampling rule."""
    for nodes, added, sizes, y in _sampled(graph, settings):
        layers = [(torch.cat(added[: len(added) - i], dim=1), sizes[-1 - i]) for i in range(len(added))]
        yield nodes, layers, y


def loader_samples(graph: Graph, settings: NodeTrain) -> Iterator[Sample]:
    """Samples of PyG's NeighborLoader, with the seconds for each, including features."""
    from torch_geometric.loader import NeighborLoader

    loader = NeighborLoader(
        pyg_data(graph), list(settings.fan_out), graph.train, batch_size=settings.batch_size, shuffle=True,
        is_sorted=True,
    )  # fmt: skip
    while True:
        began = time.perf_counter()
        for batch in loader:
            sample = (batch.x, batch.edge_index, batch.y[: batch.batch_size])
            yield partial(tuple, sample), time.perf_counter() - began
            began = time.perf_counter()


def pyg_data(graph: Graph) -> object:
    """The graph as PyG's Data, edges sorted by target."""
    from torch_geometric.data import Data

    return Data(x=graph.x, y=graph.y, edge_index=graph.edge_index)


def given_samples(graph: Graph, settings: NodeTrain) -> Iterator[Sample]:
    """Samples by PyG's rule; only fetching their features is timed."""
    for nodes, added, _, y in _sampled(graph, settings):
        yield partial(lambda rows, *others: (graph.x[rows], *others), nodes, torch.cat(added, dim=1), y), 0.0


def _sampled(
    graph: Graph, settings: NodeTrain | NodeClassificationTrain
) -> Iterator[tuple[Tensor, list[Tensor], list[int], Tensor]]:
    """Samples by PyG's rule, which expands only new nodes in each hop.

    Each has all nodes, the seeds first; the edges added by each hop, the seeds' hop first, with the number of nodes
    expanded so far; and the labels of the seeds.
    """
    sampler = NeighborSampler(graph, (*settings.fan_out, 0), seed=1)
    plan = EpochPlan(graph.train, settings.batch_size, seed=1, rank=0, world_size=1)
    for epoch in count():
        for batch in plan.batches(epoch):
            everything, *hops = sampler.sample(batch.seeds, epoch, batch.step)
            added: list[Tensor] = []
            sizes = [0]
            for block in reversed(hops):
                ends = torch.stack([block.columns.to(torch.int64), rows_of(block.offsets, block.columns.numel())])
                added.append(ends[:, ends[1] >= sizes[-1]])
                sizes.append(block.nodes.numel())
            yield everything.nodes, added, sizes[1:], graph.y[batch.seeds]
