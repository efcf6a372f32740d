"""Data for the examples in this folder: a graph whose nodes prefer neighbours of their class."""

import torch
from torch_geometric.data import Data

NODES, EDGES, CLASSES = 1000, 12000, 4


def load(root=None):  # noqa: ARG001 - of data.root, for data in files
    torch.manual_seed(0)
    y = torch.randint(CLASSES, (NODES,))
    edges = torch.randint(NODES, (2, EDGES))
    same = y[edges[0]] == y[edges[1]]
    edges, same = edges[:, kept := same | (torch.rand(EDGES) < 0.2)], same[kept]
    part = torch.rand(NODES)
    return Data(
        x=torch.nn.functional.one_hot(y, CLASSES) + 1.5 * torch.randn(NODES, CLASSES),
        y=y,
        edge_index=edges,
        edge_weight=torch.where(same, 1.0, 0.3),
        edge_attr=torch.stack([same.float(), torch.rand(len(same))], 1),
        train_mask=part < 0.6,
        val_mask=(part >= 0.6) & (part < 0.8),
        test_mask=part >= 0.8,
    )
