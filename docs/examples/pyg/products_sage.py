"""GraphSAGE with three layers, as in PyG's example for ogbn-products, with dropout that any number of ranks repeats."""

import torch
from communities import load  # noqa: F401
from torch_geometric.nn import SAGEConv

from clusterctl.pyg import dropout


class SAGE(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels, num_layers=3):
        super().__init__()
        self.num_layers = num_layers
        self.convs = torch.nn.ModuleList()
        self.convs.append(SAGEConv(in_channels, hidden_channels))
        for _ in range(num_layers - 2):
            self.convs.append(SAGEConv(hidden_channels, hidden_channels))
        self.convs.append(SAGEConv(hidden_channels, out_channels))

    def forward(self, x, edge_index):
        for i in range(self.num_layers):
            x = self.convs[i](x, edge_index)
            if i != self.num_layers - 1:
                x = x.relu()
                x = dropout(x, p=0.5, training=self.training)
        return x
