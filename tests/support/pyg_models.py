"""Models as PyG's users write them, which know nothing of clusterctl."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import SAGEConv


class Sage(nn.Module):
    """PyG's example for Reddit."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int = 2) -> None:
        super().__init__()
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        self.convs = nn.ModuleList([SAGEConv(*pair) for pair in zip(widths, widths[1:], strict=False)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for i, conv in enumerate(self.convs):
            x = conv(x, edge_index)
            if i < len(self.convs) - 1:
                x = x.relu_()
                x = F.dropout(x, p=0.0, training=self.training)
        return x
