"""Classes of graphs with features of edges, as in PyG's examples of GIN and GINE: the class, and its data."""

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import MLP, GINEConv, global_add_pool


class GINE(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels, num_layers, edge_dim):
        super().__init__()
        self.convs = torch.nn.ModuleList()
        for _ in range(num_layers):
            mlp = MLP([in_channels, hidden_channels, hidden_channels], norm=None)
            self.convs.append(GINEConv(nn=mlp, train_eps=True, edge_dim=edge_dim))
            in_channels = hidden_channels
        self.mlp = MLP([hidden_channels, hidden_channels, out_channels], norm=None, dropout=0.5)

    def forward(self, data):
        x = data.x
        for conv in self.convs:
            x = F.relu(conv(x, data.edge_index, data.edge_attr))
        return self.mlp(global_add_pool(x, data.batch, size=data.num_graphs))


def load(_):
    """One list of graphs, which clusterctl splits: their edges are long or short."""
    torch.manual_seed(0)
    return [graph(number % 2) for number in range(200)]


def graph(kind, nodes=12):
    edge_index = torch.randint(nodes, (2, 40))
    lengths = torch.randn(40, 2) + kind
    return Data(x=torch.ones(nodes, 3), edge_index=edge_index, edge_attr=lengths, y=torch.tensor([kind]))
