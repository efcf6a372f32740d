"""GraphConv with weights of edges."""

import torch
from communities import load  # noqa: F401
from torch_geometric.nn import GraphConv


class Net(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels):
        super().__init__()
        self.conv1 = GraphConv(in_channels, hidden_channels, aggr="mean")
        self.conv2 = GraphConv(hidden_channels, hidden_channels, aggr="mean")
        self.lin = torch.nn.Linear(2 * hidden_channels, out_channels)

    def forward(self, x, edge_index, edge_weight=None):
        x1 = self.conv1(x, edge_index, edge_weight).relu()
        x2 = self.conv2(x1, edge_index, edge_weight).relu()
        return self.lin(torch.cat([x1, x2], dim=-1))
