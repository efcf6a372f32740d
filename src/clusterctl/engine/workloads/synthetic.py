"""Synthetic: node classification on a random graph. Needs no data.

    clusterctl submit synthetic --follow
    torchrun --standalone --nproc-per-node 4 -m clusterctl.train synthetic train.model=sage

The graph is PyG's FakeDataset with edges that prefer nodes of the same class. `train.graph=fake-dataset` uses
FakeDataset unchanged: its edges ignore the classes, so a GCN stays at chance level, while GraphSAGE learns from a
node's own features.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch

from clusterctl.engine.graph.storage import Graph, compressed, shared
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objectives.node import NodeClassification
from clusterctl.shared.spec import SyntheticTrain

if TYPE_CHECKING:
    from torch import Tensor

    from clusterctl.shared.node.events import Context


def main(context: Context) -> None:
    train = context.train(SyntheticTrain)
    homophily = train.homophily if train.graph == "homophilous" else 0.0
    identity: dict[str, Any] = {"avg_num_nodes": train.avg_num_nodes, "seed": train.seed, "homophily": homophily}
    with joined(context) as task:
        graph = shared(task, Graph, "synthetic", identity, lambda _: generate(**identity))
        data = context.job.data
        where: dict[str, Any] = {"split": data.is_split, "host": data.is_on_host}
        fit(NodeClassification(graph, train, task, data.cache_bytes, **where), train, task)


def generate(avg_num_nodes: int, seed: int, homophily: float = 0.0) -> Graph:
    """A FakeDataset graph with disjoint 60/20/20 splits, deterministic for the same arguments.

    A share `homophily` of the edges is rewired to connect nodes of the same class; 0 leaves FakeDataset unchanged.
    """
    from torch_geometric.datasets import FakeDataset  # takes 1.6 s, and only one rank needs it

    torch.manual_seed(seed)
    random.seed(seed)  # FakeDataset draws its number of nodes here
    data = FakeDataset(avg_num_nodes=avg_num_nodes)[0]
    order = torch.randperm(data.num_nodes)
    bounds = [data.num_nodes * 6 // 10, data.num_nodes * 8 // 10]
    train, val, test = (part.sort().values for part in order.tensor_split(bounds))
    edges = within_classes(data.edge_index, data.y, homophily) if homophily else data.edge_index
    indptr, indices = compressed(edges, data.num_nodes, shuffled=True)
    return Graph(indptr, indices, data.x, data.y, train, val, test, num_classes=int(data.y.max()) + 1)


def within_classes(edges: Tensor, y: Tensor, share: float) -> Tensor:
    """Undirected edges [2, edges]; a `share` of them has a random node of the target's class as the other end."""
    from torch_geometric.utils import to_undirected

    sources, targets = edges[:, edges[0] < edges[1]]
    counts = y.bincount()
    first = counts.cumsum(0) - counts  # of each class, among the nodes sorted by class
    own = y[targets]
    drawn = first[own] + (torch.rand(own.numel()) * counts[own]).long()
    sources = torch.where(torch.rand(own.numel()) < share, y.argsort(stable=True)[drawn], sources)
    undirected: Tensor = to_undirected(torch.stack([sources, targets])[:, sources != targets], num_nodes=y.numel())
    return undirected
