"""GraphSAGE with jumping knowledge: the classifier sees the outputs of all layers."""

import torch
from communities import load  # noqa: F401
from torch_geometric.nn import JumpingKnowledge, SAGEConv


class JKNet(torch.nn.Module):
    def __init__(self, num_features, num_classes, hidden=32, num_layers=3):
        super().__init__()
        widths = [num_features, *[hidden] * num_layers]
        self.convs = torch.nn.ModuleList(SAGEConv(widths[i], widths[i + 1]) for i in range(num_layers))
        self.jump = JumpingKnowledge("cat")
        self.classifier = torch.nn.Linear(num_layers * hidden, num_classes)

    def forward(self, x, edge_index):
        outputs = []
        for conv in self.convs:
            x = conv(x, edge_index).relu()
            outputs.append(x)
        return self.classifier(self.jump(outputs))
