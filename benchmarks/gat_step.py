"""The cost of a training step of the graph attention network, ours and PyG's, on the same data in one process.

GATv2 with 8 heads of 32 and self loops, fan-out 25/10, 1,024 seeds, on a generated graph with Reddit's statistics.

The rival is PyG as an expert uses it: bipartite layers for only the required rows, fused Adam, and autocast if ours is
bfloat16; its sampling is not timed. Both sides use the allocator of a run.

python benchmarks/gat_step.py [float32] [bfloat16] [--scale 0.1] [--threads 2] [--runs 10]
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from attention_steps import side_by_side
from node_steps import expert_samples
from torch.nn import functional as F

from clusterctl.engine.data.reddit import reddit_like
from clusterctl.engine.training.objectives.own_node import OwnNodeClassification
from clusterctl.shared.spec import GatOptions, NodeClassificationTrain

if TYPE_CHECKING:
    from side_by_side import Timed

    from clusterctl.engine.graph.storage import Graph

AIM = 2.0  # times faster than the expert's
OPTIONS = GatOptions()
TRAIN = NodeClassificationTrain(model="gat", batch_size=1024, lr=1e-3)


def main() -> None:
    side_by_side(__doc__ or "", "gat", reddit_like, TRAIN, OwnNodeClassification, expert_step, AIM, scale=0.1)


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
