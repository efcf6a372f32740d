"""APPNP: predictions of a small network, spread over ten hops."""

import torch
from communities import load  # noqa: F401
from torch_geometric.nn import APPNP


class Net(torch.nn.Module):
    def __init__(self, num_features, num_classes, hidden=64, hops=10, alpha=0.1):
        super().__init__()
        self.lin1 = torch.nn.Linear(num_features, hidden)
        self.lin2 = torch.nn.Linear(hidden, num_classes)
        self.prop = APPNP(hops, alpha)

    def forward(self, x, edge_index):
        x = self.lin2(self.lin1(x).relu())
        return self.prop(x, edge_index)
