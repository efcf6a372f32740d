"""Principal neighbourhood aggregation, with the degrees of the data."""

import torch
from communities import load
from torch_geometric.nn import PNAConv
from torch_geometric.utils import degree


class PNA(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels):
        super().__init__()
        data = load()
        degrees = degree(data.edge_index[1], data.num_nodes, dtype=torch.long).bincount()
        kind = {"aggregators": ["mean", "min", "max", "std"], "scalers": ["identity", "amplification", "attenuation"]}
        self.conv1 = PNAConv(in_channels, hidden_channels, deg=degrees, edge_dim=2, **kind)
        self.conv2 = PNAConv(hidden_channels, out_channels, deg=degrees, edge_dim=2, **kind)

    def forward(self, data):
        x = self.conv1(data.x, data.edge_index, data.edge_attr).relu()
        return self.conv2(x, data.edge_index, data.edge_attr)
