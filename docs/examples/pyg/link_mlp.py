"""Missing edges, with a decoder of one's own, as in OGB's examples of link prediction: the class, and its data."""

import torch
import torch.nn.functional as F
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv
from torch_geometric.transforms import RandomLinkSplit
from torch_geometric.utils import to_undirected


class Net(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels=64):
        super().__init__()
        self.conv1 = SAGEConv(in_channels, hidden_channels)
        self.conv2 = SAGEConv(hidden_channels, hidden_channels)
        self.lin1 = torch.nn.Linear(hidden_channels, hidden_channels)
        self.lin2 = torch.nn.Linear(hidden_channels, 1)

    def encode(self, x, edge_index):
        x = self.conv1(x, edge_index).relu()
        return self.conv2(x, edge_index)

    def decode(self, z, edge_label_index):
        x = z[edge_label_index[0]] * z[edge_label_index[1]]
        x = F.relu(self.lin1(x))
        return self.lin2(x).view(-1)


def load(_):
    """Training, validation and test data with `edge_label_index` and `edge_label`."""
    seed_everything(0)
    kind = torch.randint(4, (400,))
    edge_index = torch.randint(400, (2, 6000))
    edge_index = to_undirected(edge_index[:, kind[edge_index[0]] == kind[edge_index[1]]])
    x = F.one_hot(kind, 4) + torch.randn(400, 4)
    split = RandomLinkSplit(num_val=0.05, num_test=0.1, is_undirected=True, add_negative_train_samples=False)
    return split(Data(x=x, edge_index=edge_index))
