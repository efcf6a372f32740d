"""A model of one type, made heterogeneous by PyG's to_hetero: `train.model` names a function that returns it."""

import torch
from torch_geometric.nn import SAGEConv, to_hetero


class SAGE(torch.nn.Module):
    def __init__(self, hidden_channels, out_channels):
        super().__init__()
        self.conv1 = SAGEConv((-1, -1), hidden_channels)
        self.conv2 = SAGEConv((-1, -1), out_channels)

    def forward(self, x, edge_index):
        x = self.conv1(x, edge_index).relu()
        return self.conv2(x, edge_index)


def make(metadata, out_channels, hidden_channels=32):
    return to_hetero(SAGE(hidden_channels, out_channels), metadata, aggr="sum")
