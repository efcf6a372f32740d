"""A relational graph convolution: the mean of the neighbours in each relation, and a sum over the relations."""

import torch
from torch_geometric.nn import HeteroConv, SAGEConv


class RGCN(torch.nn.Module):
    def __init__(self, metadata, out_channels, hidden_channels=32, num_layers=2):
        super().__init__()
        node_types, edge_types = metadata
        self.encode = torch.nn.ModuleDict({kind: torch.nn.LazyLinear(hidden_channels) for kind in node_types})
        self.convs = torch.nn.ModuleList(
            HeteroConv({relation: SAGEConv(hidden_channels, hidden_channels) for relation in edge_types}, aggr="sum")
            for _ in range(num_layers)
        )
        self.head = torch.nn.Linear(hidden_channels, out_channels)

    def forward(self, x_dict, edge_index_dict):
        x_dict = {kind: self.encode[kind](x) for kind, x in x_dict.items()}
        for conv in self.convs:
            x_dict = {kind: x.relu() for kind, x in conv(x_dict, edge_index_dict).items()}
        return self.head(x_dict["paper"])
