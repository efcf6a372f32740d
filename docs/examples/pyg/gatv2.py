"""Graph attention (GATv2) with a linear map beside each layer."""

import torch
import torch.nn.functional as F
from communities import load  # noqa: F401
from torch_geometric.nn import GATv2Conv


class GAT(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels, heads=4):
        super().__init__()
        self.conv1 = GATv2Conv(in_channels, hidden_channels, heads)
        self.lin1 = torch.nn.Linear(in_channels, heads * hidden_channels)
        self.conv2 = GATv2Conv(heads * hidden_channels, out_channels, heads, concat=False)
        self.lin2 = torch.nn.Linear(heads * hidden_channels, out_channels)

    def forward(self, x, edge_index):
        x = F.elu(self.conv1(x, edge_index) + self.lin1(x))
        return self.conv2(x, edge_index) + self.lin2(x)
