"""Synthetic: PyG's FakeDataset, a random graph whose labels are in the features. Needs no data.

    clusterctl submit synthetic --follow
    torchrun --standalone --nproc-per-node 4 -m clusterctl.workloads.synthetic train.model=sage

A GCN stays at chance here: the neighbourhood's labels are random and drown the node's own. GraphSAGE learns.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import torch

from clusterctl.graph.storage import Graph, compressed, shared
from clusterctl.spec import SyntheticTrain
from clusterctl.task.task import joined
from clusterctl.training.loop import fit
from clusterctl.training.node_objective import NodeClassification
from clusterctl.workloads.standalone import run_alone

if TYPE_CHECKING:
    from clusterctl.runs.context import Context


def main(context: Context) -> None:
    train = context.train(SyntheticTrain)
    identity = {"avg_num_nodes": train.avg_num_nodes, "seed": train.seed}
    with joined(context) as task:
        graph = shared(task, Graph, "synthetic", identity, lambda _: generate(train.avg_num_nodes, train.seed))
        fit(NodeClassification(graph, train, task), train, task)


def generate(avg_num_nodes: int, seed: int) -> Graph:
    """A FakeDataset graph with disjoint 60/20/20 splits, the same for the same arguments."""
    from torch_geometric.datasets import FakeDataset  # 1.6 s, and only one rank of all needs it

    torch.manual_seed(seed)
    random.seed(seed)  # FakeDataset draws its number of nodes here
    data = FakeDataset(avg_num_nodes=avg_num_nodes)[0]
    order = torch.randperm(data.num_nodes)
    bounds = [data.num_nodes * 6 // 10, data.num_nodes * 8 // 10]
    train, val, test = (part.sort().values for part in order.tensor_split(bounds))
    indptr, indices = compressed(data.edge_index, data.num_nodes)
    return Graph(indptr, indices, data.x, data.y, train, val, test, num_classes=int(data.y.max()) + 1)


if __name__ == "__main__":
    run_alone("synthetic", main)
