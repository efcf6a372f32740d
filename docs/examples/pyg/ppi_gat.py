"""Several labels for each node, in several graphs, as in PyG's examples/ppi.py: the class, and data like PPI's."""

import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GATConv


class Net(torch.nn.Module):
    def __init__(self, in_channels, out_channels, hidden_channels=256):
        super().__init__()
        self.conv1 = GATConv(in_channels, hidden_channels, heads=4)
        self.lin1 = torch.nn.Linear(in_channels, 4 * hidden_channels)
        self.conv2 = GATConv(4 * hidden_channels, out_channels, heads=6, concat=False)
        self.lin2 = torch.nn.Linear(4 * hidden_channels, out_channels)

    def forward(self, x, edge_index):
        x = F.elu(self.conv1(x, edge_index) + self.lin1(x))
        return self.conv2(x, edge_index) + self.lin2(x)


def load(_):
    """Three data sets, as `PPI(root, split)` gives them: the graphs for training, validation and testing."""
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(16, 5, generator=generator)
    return tuple([graph(mixing, generator) for _ in range(count)] for count in (6, 2, 2))


def graph(mixing, generator, nodes=100):
    x = torch.randn(nodes, 16, generator=generator)
    edge_index = torch.randint(nodes, (2, 4 * nodes), generator=generator)
    around = x.index_add(0, edge_index[1], x[edge_index[0]])
    return Data(x=x, edge_index=edge_index, y=(around @ mixing > 0).float())
