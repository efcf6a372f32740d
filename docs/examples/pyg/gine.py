"""Graph isomorphism layers with attributes of edges; the first map gets its size from the data."""

import torch
from communities import load  # noqa: F401
from torch.nn import Linear, ReLU, Sequential
from torch_geometric.nn import GINEConv
from torch_geometric.nn import Linear as LazyLinear


class GINE(torch.nn.Module):
    def __init__(self, hidden_channels, num_classes):
        super().__init__()
        self.encoder = LazyLinear(-1, hidden_channels)
        self.conv1 = GINEConv(self.mlp(hidden_channels), edge_dim=2)
        self.conv2 = GINEConv(self.mlp(hidden_channels), edge_dim=2)
        self.classifier = Linear(hidden_channels, num_classes)

    @staticmethod
    def mlp(width):
        return Sequential(Linear(width, width), ReLU(), Linear(width, width))

    def forward(self, x, edge_index, edge_attr):
        x = self.encoder(x).relu()
        x = self.conv1(x, edge_index, edge_attr).relu()
        x = self.conv2(x, edge_index, edge_attr).relu()
        return self.classifier(x)
