"""Who will want what: a bipartite GraphSAGE over users and items, the model of PyG's example on Taobao.

Items look at items that users take together with them; users look at their items, as rows and through such a layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from clusterctl.graph.layers import SageConv

if TYPE_CHECKING:
    from clusterctl.graph.hetero_sampling import HeteroSample

USER, ITEM = "user", "item"
OF_USER = (ITEM, "rev_to", USER)  # a user's items
TOGETHER = (ITEM, "to", ITEM)  # items with users in common


class ItemEncoder(nn.Module):
    """Two layers over items that go together, and a linear map."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = SageConv(channels, channels), SageConv(channels, channels)
        self.last = nn.Linear(channels, channels)

    def forward(self, sample: HeteroSample, means: Tensor, rows: Tensor) -> Tensor:
        block = sample.hops[0][TOGETHER]
        hidden = self.first.combine(means, rows).relu()
        hidden = self.second(block, hidden, hidden[: block.nodes.numel()]).relu()
        out: Tensor = self.last(hidden)
        return out


class UserEncoder(nn.Module):
    """A user's items, first as they are, then after a layer of their own; and a linear map."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.items = SageConv(channels, channels)
        self.first, self.second = SageConv(channels, channels), SageConv(channels, channels)
        self.last = nn.Linear(channels, channels)

    def forward(self, sample: HeteroSample, means: Tensor, rows: Tensor, users: Tensor) -> Tensor:
        block = sample.hops[0][OF_USER]
        items = self.items.combine(means, rows).relu()
        hidden = self.first(block, rows, users).relu()
        hidden = self.second(block, items, hidden).relu()
        out: Tensor = self.last(hidden)
        return out


class Recommender(nn.Module):
    """Scores pairs of users and items (logits): both encoded, then a two-layer perceptron on the two rows."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.items, self.users = ItemEncoder(channels), UserEncoder(channels)
        self.hidden, self.score = nn.Linear(2 * channels, channels), nn.Linear(channels, 1)

    def forward(self, sample: HeteroSample, users: Tensor, items: Tensor, pairs: tuple[Tensor, Tensor]) -> Tensor:
        """The scores [pairs].

        `users` and `items` are the rows of the sample's nodes [nodes, channels]; `pairs` are (user, item) as places
        among its seeds. The first aggregation over items is the same for both encoders, and computed once.
        """
        outer = sample.hops[1][TOGETHER]
        rows = items[: outer.nodes.numel()]
        means = outer.mean(items)
        of_items = self.items(sample, means, rows)
        of_users = self.users(sample, means, rows, users[: sample.hops[0][OF_USER].nodes.numel()])
        both = torch.cat([of_users[pairs[0]], of_items[pairs[1]]], dim=1)
        scores: Tensor = self.score(self.hidden(both).relu())
        return scores.squeeze(1)


def fan_outs(first: int, second: int) -> dict[tuple[str, str, str], tuple[int, ...]]:
    """What the model needs: `first` items of a user or item, and `second` of each of those."""
    return {OF_USER: (first,), TOGETHER: (first, second)}
