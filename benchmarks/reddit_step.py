"""What a training step costs: GraphSAGE on a generated graph with Reddit's statistics, ours and PyG's, one process.

The settings of PyG's own example: 602-256-41, fan-out 25/10, 1,024 seeds, Adam. The rival is PyG's SAGEConv model on
PyG's subgraphs of sampled neighbourhoods. PyG's NeighborLoader draws them where torch-sparse or pyg-lib is installed;
else our sampler does, in the same shape and outside the measured time: the rival then samples for nothing. The aims are
those for the whole graph (--scale 1): on a small one the second hop reaches nearly every node, once for PyG.

python benchmarks/reddit_step.py [--scale 0.1] [--threads 2] [--runs 10]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from reddit_like import reddit_like
from side_by_side import Timed, compare
from torch import distributed as dist
from torch.nn import functional as F

from clusterctl.graph.sampling import NeighborSampler
from clusterctl.runs.events import Events
from clusterctl.runs.metrics import MetricsWriter
from clusterctl.runs.place import Place
from clusterctl.runs.signals import StopRequest
from clusterctl.spec import RedditTrain
from clusterctl.task.task import Task
from clusterctl.training.adam import Adam
from clusterctl.training.epoch_plan import EpochPlan
from clusterctl.training.flat import FlatModel
from clusterctl.training.node_classification import NodeClassification

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterctl.graph.storage import Graph

SETTINGS = RedditTrain()
ROWS = {  # name -> (settings, the aim for the ratio)
    "float32": (SETTINGS, 1 / 7),
    "bfloat16": (replace(SETTINGS, precision="bfloat16"), 1 / 12),
    "cached first aggregation, float32": (replace(SETTINGS, cache_first_aggregation=True), 1 / 7),
    "cached first aggregation, bfloat16": (
        replace(SETTINGS, cache_first_aggregation=True, precision="bfloat16"),
        1 / 12,
    ),
}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--scale", type=float, default=0.1, help="of the number of nodes; 1: all 233 thousand")
    words.add_argument("--threads", type=int, default=2)
    words.add_argument("--runs", type=int, default=10)
    options = words.parse_args()
    torch.set_num_threads(options.threads)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    graph = reddit_like(options.scale)
    print(f"{graph.num_nodes} nodes, {graph.indices.numel()} edges, {options.threads} threads")
    print(f"our sampler: {'numba' if find_spec('numba') else 'plain torch'}")
    loader = bool(find_spec("torch_sparse") or find_spec("pyg_lib"))
    print(f"rival's samples: {'its NeighborLoader' if loader else 'ours, unmeasured (no torch-sparse, no pyg-lib)'}\n")
    rival = pyg_step(graph, loaded(graph) if loader else sampled(graph))
    for name, (settings, bound) in ROWS.items():
        compare(
            f"A step, {name}", ("clusterctl", our_step(graph, settings)), ("PyG", rival), bound=bound, runs=options.runs
        )
    dist.destroy_process_group()


Sample = tuple["Callable[[], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]", float]
"""Fetches the rows' features, the edges among them and the labels of the first rows; seconds spent before."""


def our_step(graph: Graph, settings: RedditTrain) -> Timed:
    """Sampling, forward, backward, update, one after the other.

    `fit` samples ahead in a thread; here that thread would work during the rival's time.
    """
    task = lone_task()
    objective = NodeClassification(graph, settings, task)
    flat = FlatModel(objective.model)
    optimizer = Adam(flat.values, flat.gradients, settings.lr, settings.weight_decay)
    plan = EpochPlan(graph.train, settings.batch_size, seed=0, rank=0, world_size=1)
    batches = (batch for epoch in count() for batch in plan.batches(epoch))
    objective.model.train()

    def once() -> float:
        batch = next(batches)
        began = time.perf_counter()
        flat.backward(objective.loss(batch, objective.prepare(batch)), task.stop)
        optimizer.step()
        return time.perf_counter() - began

    return once


def pyg_step(graph: Graph, samples: Iterator[Sample]) -> Timed:
    """The example's step: fetch the sample's features, two convolutions on all its rows, backward, Adam."""
    from torch_geometric.nn import SAGEConv

    widths = (graph.num_features, SETTINGS.hidden_channels, graph.num_classes)
    first, second = SAGEConv(*widths[:2]), SAGEConv(*widths[1:])
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=SETTINGS.lr)

    def once() -> float:
        fetch, seconds = next(samples)
        began = time.perf_counter()
        x, edges, y = fetch()
        hidden = F.dropout(first(x, edges).relu(), SETTINGS.dropout)
        loss = F.cross_entropy(second(hidden, edges)[: y.numel()], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return time.perf_counter() - began + seconds

    return once


def loaded(graph: Graph) -> Iterator[Sample]:
    """Samples of PyG's NeighborLoader, with the seconds that each took, features included."""
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader

    targets = torch.arange(graph.num_nodes).repeat_interleave(graph.degree)
    data = Data(x=graph.x, y=graph.y, edge_index=torch.stack([graph.indices.to(torch.int64), targets]))
    loader = NeighborLoader(
        data, list(SETTINGS.fan_out), graph.train, batch_size=SETTINGS.batch_size, shuffle=True, is_sorted=True
    )
    while True:
        began = time.perf_counter()
        for batch in loader:
            sample = (batch.x, batch.edge_index, batch.y[: batch.batch_size])
            yield partial(tuple, sample), time.perf_counter() - began
            began = time.perf_counter()


def sampled(graph: Graph) -> Iterator[Sample]:
    """Samples by PyG's rule, the second hop for new nodes alone; they cost the rival nothing but their features."""
    sampler = NeighborSampler(graph, (*SETTINGS.fan_out, 0), seed=1)
    plan = EpochPlan(graph.train, SETTINGS.batch_size, seed=1, rank=0, world_size=1)
    for epoch in count():
        for batch in plan.batches(epoch):
            last, outer, inner = sampler.sample(batch.seeds, epoch, batch.step)
            seeds = batch.seeds.numel()
            edges_in, edges_out = (
                torch.stack([block.columns.to(torch.int64), rows_of(block.offsets)]) for block in (inner, outer)
            )
            edges = torch.cat([edges_in, edges_out[:, edges_out[1] >= seeds]], dim=1)
            nodes, y = last.nodes, graph.y[batch.seeds]
            yield partial(lambda rows, *others: (graph.x[rows], *others), nodes, edges, y), 0.0


def rows_of(offsets: torch.Tensor) -> torch.Tensor:
    return torch.arange(offsets.numel() - 1).repeat_interleave(offsets.diff())


def lone_task() -> Task:
    world = dist.group.WORLD
    assert world is not None
    place = Place()
    return Task(
        place, torch.device("cpu"), world, Path("unused"), Events(None, 0), MetricsWriter(None, 0), StopRequest()
    )


if __name__ == "__main__":
    main()
