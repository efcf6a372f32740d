"""Which items will users buy? An encoder of several types, a decoder of one's own, and data with a known best score.

Users and items have a kind, which shows in their features only roughly. Items have tags of their kind, and users know
users of theirs, so a model finds the kinds from all types of edges. Nine purchases in ten are of one's own kind, and
which ones is chance, so no model gets an expected AUC above BEST.
"""

import torch
import torch.nn.functional as F
from torch_geometric import seed_everything
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.transforms import RandomLinkSplit, ToUndirected

NODES = {"user": 400, "item": 300, "tag": 40}
KINDS, ALIKE, PURCHASES = 4, 0.9, 6000
BUYS = ("user", "buys", "item")


def auc_of_kinds(alike, others):
    """The AUC of telling alike pairs apart, from their shares among pairs with an edge and without."""
    return alike * (1 - others) + (alike * others + (1 - alike) * (1 - others)) / 2


PAIRS = NODES["user"] * NODES["item"]
BEST = auc_of_kinds(ALIKE, (PAIRS / KINDS - ALIKE * PURCHASES) / (PAIRS - PURCHASES))


def load(_=None):
    """Training, validation and test data: purchases to predict, and edges of all types."""
    seed_everything(0)
    kind = {name: torch.randint(KINDS, (count,)) for name, count in NODES.items()}
    data = HeteroData()
    for name, width in (("user", 6), ("item", 5)):
        signal = torch.randn(KINDS, width)[kind[name]]
        data[name].x = signal + 1.5 * torch.randn(NODES[name], width)
    data["tag"].num_nodes = NODES["tag"]  # without features: their embeddings are learned
    for source, name, target, edges in (
        (*BUYS, PURCHASES),
        ("item", "has", "tag", 900),
        ("user", "knows", "user", 1500),
    ):
        ends = torch.randint(NODES[source], (edges,))
        alike = torch.rand(edges) < ALIKE
        wanted = torch.where(
            alike, kind[source][ends], (kind[source][ends] + torch.randint(1, KINDS, (edges,))) % KINDS
        )
        chosen = [torch.nonzero(kind[target] == one).view(-1) for one in range(KINDS)]
        others = torch.stack([chosen[one][torch.randint(len(chosen[one]), ())] for one in wanted.tolist()])
        data[source, name, target].edge_index = torch.unique(torch.stack([ends, others]), dim=1)
    split = RandomLinkSplit(
        num_val=0.1,
        num_test=0.1,
        add_negative_train_samples=False,
        edge_types=[BUYS],
        rev_edge_types=[("item", "rev_buys", "user")],
    )
    return split(ToUndirected()(data))


class Net(torch.nn.Module):
    def __init__(self, metadata, hidden_channels=32):
        super().__init__()
        node_types, edge_types = metadata
        self.into = torch.nn.ModuleDict({kind: torch.nn.LazyLinear(hidden_channels) for kind in node_types})
        self.convs = torch.nn.ModuleList(
            HeteroConv({relation: SAGEConv(hidden_channels, hidden_channels) for relation in edge_types}, aggr="sum")
            for _ in range(2)
        )
        self.lin1 = torch.nn.Linear(2 * hidden_channels, hidden_channels)
        self.lin2 = torch.nn.Linear(hidden_channels, 1)

    def encode(self, x_dict, edge_index_dict):
        x_dict = {kind: self.into[kind](x) for kind, x in x_dict.items()}
        for conv in self.convs:
            x_dict = {kind: F.normalize(x.relu()) for kind, x in conv(x_dict, edge_index_dict).items()}
        return x_dict

    def decode(self, z_dict, edge_label_index):
        user, item = edge_label_index
        z = torch.cat([z_dict["user"][user], z_dict["item"][item]], dim=-1)
        return self.lin2(self.lin1(z).relu()).view(-1)
