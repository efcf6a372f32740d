"""What a training step of the graph attention network costs, ours and PyG's, on the same data in one process.

GATv2 with 8 heads of 32 and self loops, fan-out 25/10, 1,024 seeds, on a generated graph with Reddit's statistics.

The rival is PyG as an expert runs it: bipartite layers of only the rows that are needed, fused Adam, autocast where
ours is bfloat16, and samples for nothing. Both sides have the allocator that a run has.

python benchmarks/gat_step.py [float32] [bfloat16] [--scale 0.1] [--threads 2] [--runs 10]
"""

from __future__ import annotations

import argparse
import time
from itertools import count
from typing import TYPE_CHECKING

import torch
from node_steps import expert_samples, lone_task
from side_by_side import compare, with_tuned_allocator
from torch import distributed as dist
from torch.nn import functional as F

from clusterctl.spec import GatOptions, NodeClassificationTrain
from clusterctl.training.adam import Adam
from clusterctl.training.epoch_plan import EpochPlan
from clusterctl.training.flat import FlatModel
from clusterctl.training.own_objective import OwnNodeClassification
from clusterctl.workloads.generated.reddit_like import reddit_like

if TYPE_CHECKING:
    from side_by_side import Timed

    from clusterctl.graph.storage import Graph

AIM = 2.0  # times faster than the expert's
OPTIONS = GatOptions()


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("precisions", nargs="*", metavar="PRECISION", default=["float32", "bfloat16"])
    words.add_argument("--scale", type=float, default=0.1, help="of Reddit's number of nodes; 1: all 233 thousand")
    words.add_argument("--threads", type=int, default=2)
    words.add_argument("--runs", type=int, default=10)
    options = words.parse_args()
    with_tuned_allocator()
    torch.set_num_threads(options.threads)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    graph = reddit_like(options.scale)
    print(f"{graph.num_nodes} nodes, {graph.indices.numel()} edges, {options.threads} threads\n")
    for precision in options.precisions:
        train = NodeClassificationTrain(model="gat", batch_size=1024, lr=1e-3, precision=precision)
        ours = ("clusterctl", our_step(graph, train))
        rival = ("PyG by an expert, samples for nothing", expert_step(graph, train))
        compare(f"gat, a step in {precision}", ours, rival, bound=1 / AIM, runs=options.runs)
    dist.destroy_process_group()


def our_step(graph: Graph, train: NodeClassificationTrain) -> Timed:
    """Sampling, forward, backward, update, one after the other."""
    task = lone_task()
    objective = OwnNodeClassification(graph, train, task)
    flat = FlatModel(objective.model)
    optimizer = Adam(flat.values, flat.gradients, train.lr, train.weight_decay)
    plan = EpochPlan(graph.train, train.batch_size or 0, seed=0, rank=0, world_size=1)
    batches = (batch for epoch in count() for batch in plan.batches(epoch))
    objective.model.train()

    def once() -> float:
        batch = next(batches)
        began = time.perf_counter()
        flat.backward(objective.loss(batch, objective.prepare(batch)), task.stop)
        optimizer.step()
        return time.perf_counter() - began

    return once


def expert_step(graph: Graph, train: NodeClassificationTrain) -> Timed:
    """The features of a sample, PyG's bipartite layers on it, backward, fused Adam."""
    from torch_geometric.nn import GATv2Conv

    hidden = GATv2Conv(graph.num_features, OPTIONS.hidden, OPTIONS.heads)
    last = GATv2Conv(OPTIONS.heads * OPTIONS.hidden, graph.num_classes, OPTIONS.output_heads, concat=False)
    layers = torch.nn.ModuleList([hidden, last])
    optimizer = torch.optim.Adam(layers.parameters(), lr=train.lr, fused=True)
    samples = expert_samples(graph, train)
    is_narrow = train.precision == "bfloat16"

    def once() -> float:
        nodes, (outer, inner), y = next(samples)
        began = time.perf_counter()
        x = graph.x.index_select(0, nodes)
        with torch.autocast("cpu", torch.bfloat16, enabled=is_narrow):
            x = F.elu(hidden((x, x[: outer[1]]), outer[0]))
            x = F.dropout(x, OPTIONS.dropout)
            x = last((x, x[: inner[1]]), inner[0])
            loss = F.cross_entropy(x.float(), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return time.perf_counter() - began

    return once


if __name__ == "__main__":
    main()
