"""A training step of models as PyG's users write them, `forward(x, edge_index)`, with ours and with PyG's own loop.

The classes are those of docs/examples/pyg, unchanged, on a generated graph with Reddit's statistics. Two rivals, with
the same class, batch, fan-out and number format: PyG's loop with its NeighborLoader, if torch-sparse or pyg-lib is
installed (`make bench-rivals` builds the former), and an expert's, with fused Adam and sampling not timed. All sides
use the allocator of a run.

Ours gives a node one row for each depth at which it was sampled, which makes training independent of the number of
ranks, except under a BatchNorm, where that cannot be; PyG's samples have one row per node, so in small graphs the rival
computes fewer rows: the rows are printed.

python benchmarks/any_model.py [sage] [gcn] [gatv2] [jk] [deep] [--scale 0.1] [--threads 2] [--runs 10]
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import torch
from node_steps import begin_alone, given_samples, loader_samples, lone_task, our_step
from side_by_side import arguments, compare
from torch import distributed as dist
from torch.nn import functional as F

from clusterctl.engine.data.reddit import reddit_like
from clusterctl.engine.training.epoch_plan import EpochPlan
from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
from clusterctl.engine.training.own.model import built
from clusterctl.shared.spec import NodeClassificationTrain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from node_steps import Sample
    from side_by_side import Timed

    from clusterctl.engine.graph.storage import Graph

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "docs/examples/pyg"))
_TWO, _THREE = (25, 10), (15, 10, 5)
MODELS = {
    "sage": NodeClassificationTrain(model="reddit_sage:SAGE", options={"hidden_channels": 256}, fan_out=_TWO),
    "gcn": NodeClassificationTrain(
        model="arxiv_gcn:GCN", options={"hidden_channels": 256, "num_layers": 3, "dropout": 0.5}, fan_out=_THREE
    ),
    "gatv2": NodeClassificationTrain(model="gatv2:GAT", options={"hidden_channels": 16}, fan_out=(10, 5)),
    "jk": NodeClassificationTrain(model="sage_jk:JKNet", options={"hidden": 128}, fan_out=_THREE),
    "deep": NodeClassificationTrain(model="products_sage:SAGE", options={"hidden_channels": 128}, fan_out=_THREE),
}
_BATCH = 512
_FASTER_THAN_THE_LOADER, _FASTER_THAN_THE_EXPERT = 3, 1.1


def main() -> None:
    words = arguments(__doc__)
    words.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    words.add_argument("--scale", type=float, default=0.1, help="relative to Reddit's 233 thousand nodes")
    words.add_argument("--threads", type=int, default=2)
    words.add_argument("--runs", type=int, default=10)
    options = words.parse_args()
    begin_alone(options.threads)
    graph = reddit_like(options.scale)
    print(f"{graph.num_nodes} nodes, {graph.indices.numel()} edges, {_BATCH} seeds, {options.threads} threads\n")
    for name in options.models or MODELS:
        side_by_side(name, graph, options.runs)
    dist.destroy_process_group()


def side_by_side(name: str, graph: Graph, runs: int) -> None:
    settings = replace(MODELS[name], batch_size=_BATCH)
    print(f"{name}: {settings.model}, fan-out {settings.fan_out}; rows {rows_of_both(graph, settings)}")
    ours = ("clusterctl", our_step(graph, settings, OwnNodeClassification))
    if find_spec("torch_sparse") or find_spec("pyg_lib"):
        shares: list[float] = []
        loop = loop_step(graph, settings, loader_samples(graph, settings), note=shares.append)
        rival = ("PyG's loop with NeighborLoader", loop)
        compare(f"{name}, one step", ours, rival, bound=1 / _FASTER_THAN_THE_LOADER, runs=runs)
        share = median(shares)
        free = f"with the same rest of a step and free sampling, one would be {1 / (1 - share):.1f} times faster"
        print(f"  PyG samples in {share:.0%} of its time: {free}\n")
    else:
        print("no NeighborLoader: neither torch-sparse nor pyg-lib is installed")
    expert = (
        "expert's PyG, sampling not timed",
        loop_step(graph, settings, given_samples(graph, settings), fused=True),
    )
    compare(f"{name}, one step", ours, expert, bound=1 / _FASTER_THAN_THE_EXPERT, runs=runs)


def rows_of_both(graph: Graph, settings: NodeClassificationTrain) -> str:
    """The rows that a step computes: with ours, and with PyG's samples."""
    objective = OwnNodeClassification(graph, settings, lone_task())
    batch = next(iter(EpochPlan(graph.train, _BATCH, seed=0, rank=0, world_size=1).batches(0)))
    ours = len(objective.gather(objective.prepare(batch)))
    fetch, _ = next(given_samples(graph, settings))
    return f"{ours} and {len(fetch()[0])}"


def loop_step(
    graph: Graph,
    settings: NodeClassificationTrain,
    samples: Iterator[Sample],
    *,
    fused: bool = False,
    note: Callable[[float], object] = lambda _: None,
) -> Timed:
    """The examples' step: the class on the whole sample, loss of the seeds, backward, Adam.

    `note` is called with the share of its time spent on sampling.
    """
    sizes = {"features": graph.num_features, "classes": graph.num_classes}
    model = built(settings.model, sizes, settings.options, len(settings.fan_out))
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.lr, fused=fused)
    model.train()

    def once() -> float:
        fetch, seconds = next(samples)
        began = time.perf_counter()
        x, edges, y = fetch()
        loss = F.cross_entropy(model(x, edges)[: y.numel()], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        spent = time.perf_counter() - began + seconds
        note(seconds / spent)
        return spent

    return once


if __name__ == "__main__":
    main()
