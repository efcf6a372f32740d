"""Loss and accuracy per epoch, ours and PyG's, on a tenth of the generated graph with Reddit's statistics.

Both use the same hyperparameters and are evaluated by exact inference on the whole graph. The rival's samples come from
its NeighborLoader if torch-sparse or pyg-lib is installed, else from our sampler with PyG's sampling rule.

python benchmarks/curves.py [--scale 0.1] [--epochs 10] [--threads 2]
"""

from __future__ import annotations

import time
from dataclasses import replace
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING

import torch
from node_steps import given_samples, loader_samples, lone_task, pyg_forward, pyg_model
from side_by_side import arguments
from torch import distributed as dist
from torch.nn import functional as F

from clusterctl.engine.data.reddit import reddit_like
from clusterctl.engine.training.epoch_plan import EpochPlan
from clusterctl.engine.training.flat import FlatModel
from clusterctl.engine.training.learner import Adam
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.shared.spec import RedditTrain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.engine.graph.storage import Graph

SETTINGS = RedditTrain()
Point = tuple[float, float, float]
"""Mean loss of an epoch, accuracy on the validation split, seconds of training."""


def main() -> None:
    words = arguments(__doc__)
    words.add_argument("--scale", type=float, default=0.1, help="relative to Reddit's number of nodes")
    words.add_argument("--epochs", type=int, default=10)
    words.add_argument("--threads", type=int, default=2)
    options = words.parse_args()
    torch.set_num_threads(options.threads)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    graph = reddit_like(options.scale)
    accelerated = replace(SETTINGS, precision="bfloat16", cache_first_aggregation=True)
    curves = {
        "clusterctl": our_curve(graph, SETTINGS),
        "accelerated": our_curve(graph, accelerated),
        "PyG": pyg_curve(graph, SETTINGS),
    }
    print(f"{graph.num_nodes} nodes, {graph.indices.numel()} edges; loss, validation accuracy, seconds of training")
    print("epoch" + "".join(f"{name:>28}" for name in curves))
    for epoch, points in enumerate(islice(zip(*curves.values(), strict=True), options.epochs), start=1):
        cells = "".join(f"{loss:>12.4f}{share:>8.4f}{seconds:>6.1f} s" for loss, share, seconds in points)
        print(f"{epoch:>5}{cells}", flush=True)
    dist.destroy_process_group()


def our_curve(graph: Graph, settings: RedditTrain) -> Iterator[Point]:
    task = lone_task()
    objective = NodeClassification(graph, settings, task)
    flat = FlatModel(objective.model)
    optimizer = Adam(flat.values, flat.gradients, settings.lr, settings.weight_decay)
    plan = EpochPlan(graph.train, settings.batch_size, settings.seed, 0, 1)
    epoch = 0
    while epoch := epoch + 1:
        objective.model.train()
        began, total = time.perf_counter(), 0.0
        for batch in plan.batches(epoch):
            loss, _ = flat.backward(objective.loss(batch, objective.prepare(batch)), task.stop).read()
            optimizer.step()
            total += loss * batch.total
        seconds = time.perf_counter() - began
        objective.model.eval()
        yield total / graph.train.numel(), objective.evaluate(["val"])["val"].value, seconds


def pyg_curve(graph: Graph, settings: RedditTrain) -> Iterator[Point]:
    ours = NodeClassification(graph, settings, lone_task())  # only for the evaluation
    layers = pyg_model(graph, settings)
    optimizer = torch.optim.Adam(layers.parameters(), lr=settings.lr)
    has_loader = find_spec("torch_sparse") or find_spec("pyg_lib")
    samples = (loader_samples if has_loader else given_samples)(graph, settings)
    steps = -(-graph.train.numel() // settings.batch_size)
    while True:
        layers.train()
        spent, total = 0.0, 0.0
        for fetch, seconds in islice(samples, steps):
            began = time.perf_counter()
            x, edges, y = fetch()
            loss = F.cross_entropy(pyg_forward(layers, x, edges, settings.dropout)[: y.numel()], y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            spent += time.perf_counter() - began + seconds
            total += loss.item() / steps
        renamed = {"lin_l.weight": "neighbor.weight", "lin_l.bias": "neighbor.bias", "lin_r.weight": "root.weight"}
        for own, theirs in zip(ours.model.layers, layers, strict=True):
            own.load_state_dict({renamed[name]: value for name, value in theirs.state_dict().items()})
        ours.model.eval()
        yield total, ours.evaluate(["val"])["val"].value, spent


if __name__ == "__main__":
    main()
