"""Data for the examples with several types of nodes: papers, authors and institutes, whose class their links follow."""

import torch
from torch_geometric.data import HeteroData
from torch_geometric.transforms import ToUndirected

NODES = {"paper": 900, "author": 600, "institute": 40}
CLASSES = 4


def load(root=None):  # noqa: ARG001 - of data.root, for data in files
    torch.manual_seed(0)
    kind = {name: torch.randint(CLASSES, (count,)) for name, count in NODES.items()}
    data = HeteroData()
    for name, width in (("paper", 8), ("author", 6)):
        signal = torch.randn(CLASSES, width)[kind[name]]
        data[name].x = signal + 2 * torch.randn(NODES[name], width)
    data["institute"].num_nodes = NODES["institute"]  # without features: their embeddings are learned
    for source, name, target, edges in (
        ("paper", "cites", "paper", 6000),
        ("author", "writes", "paper", 4000),
        ("author", "works_at", "institute", 1500),
    ):
        ends = torch.stack([torch.randint(NODES[end], (edges,)) for end in (source, target)])
        alike = kind[source][ends[0]] == kind[target][ends[1]]
        data[source, name, target].edge_index = ends[:, alike | (torch.rand(edges) < 0.1)]
    part = torch.rand(NODES["paper"])
    data["paper"].y = kind["paper"]
    data["paper"].train_mask, data["paper"].val_mask = part < 0.6, (part >= 0.6) & (part < 0.8)
    data["paper"].test_mask = part >= 0.8
    return ToUndirected()(data)
