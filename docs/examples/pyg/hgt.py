"""The heterogeneous graph transformer, as in PyG's example hgt_dblp.py."""

import torch
from torch_geometric.nn import HGTConv, Linear


class HGT(torch.nn.Module):
    def __init__(self, metadata, out_channels, hidden_channels=32, num_heads=2, num_layers=2):
        super().__init__()
        self.lin_dict = torch.nn.ModuleDict({node_type: Linear(-1, hidden_channels) for node_type in metadata[0]})
        self.convs = torch.nn.ModuleList(
            HGTConv(hidden_channels, hidden_channels, metadata, num_heads) for _ in range(num_layers)
        )
        self.lin = Linear(hidden_channels, out_channels)

    def forward(self, x_dict, edge_index_dict):
        x_dict = {node_type: self.lin_dict[node_type](x).relu_() for node_type, x in x_dict.items()}
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
        return self.lin(x_dict["paper"])
