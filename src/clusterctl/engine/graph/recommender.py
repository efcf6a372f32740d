"""A recommender: bipartite GraphSAGE over users and items, the model of PyG's Taobao example.

Items aggregate the items that users take together with them. Users aggregate their items, both the raw rows and the
output of such an item layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clusterctl.engine.graph.blocks import Linear, linear, own_slice
from clusterctl.engine.graph.convolutions import SageConv
from clusterctl.engine.graph.inference import blocks, shared_rows

if TYPE_CHECKING:
    from clusterctl.engine.graph.blocks import Block
    from clusterctl.engine.graph.hops import HeteroSample
    from clusterctl.engine.graph.storage import HeteroGraph
    from clusterctl.engine.task.task import Task

USER, ITEM = "user", "item"
OF_USER = (ITEM, "rev_to", USER)  # a user's items
TOGETHER = (ITEM, "to", ITEM)  # items with users in common


class ItemEncoder(nn.Module):
    """Two layers over items that users take together, and a linear layer."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = SageConv(channels, channels), SageConv(channels, channels)
        self.last = Linear(channels, channels)

    def forward(self, block: Block, hidden: Tensor, targets: Tensor) -> Tensor:
        """Encode the targets of a block; `hidden` and `targets` are outputs of the first layer."""
        out: Tensor = self.last(self.second(block, hidden, targets).relu())
        return out


class UserEncoder(nn.Module):
    """Aggregates a user's items, first their raw rows, then the output of an item layer; and a linear layer."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.items = SageConv(channels, channels)
        self.first, self.second = SageConv(channels, channels), SageConv(channels, channels)
        self.last = Linear(channels, channels)

    def forward(self, block: Block, items: Tensor, hidden: Tensor, users: Tensor) -> Tensor:
        """Encode the targets of a block, with rows `users`; `items` are raw rows, `hidden` the item layer's output."""
        out: Tensor = self.last(self.second(block, hidden, self.first(block, items, users).relu()).relu())
        return out


class Recommender(nn.Module):
    """Scores pairs of users and items (logits): encodes both, then applies a two-layer perceptron to the two rows."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.items, self.users = ItemEncoder(channels), UserEncoder(channels)
        self.hidden, self.score = Linear(2 * channels, channels), Linear(channels, 1)

    def forward(self, sample: HeteroSample, users: Tensor, items: Tensor, pairs: tuple[Tensor, Tensor]) -> Tensor:
        """The scores [pairs].

        `users` and `items` are the rows of the sample's nodes [nodes, channels]; `pairs` are (user, item) as places
        among its seeds. The first aggregation over items is the same for both encoders and is computed once.
        """
        outer, of_items, of_users = sample.hops[1][TOGETHER], sample.hops[0][TOGETHER], sample.hops[0][OF_USER]
        rows = items[: outer.nodes.numel()]
        hidden, through = self.first_layers(outer.mean(items), rows)
        encoded_items = self.items(of_items, hidden, hidden[: of_items.nodes.numel()])
        users = users[: of_users.nodes.numel()]
        encoded_users = self.users(of_users, rows, through, users)
        # Unlike that of an index, the gradient of an embedding adds whole rows, in parallel and in a fixed order.
        return self.scores(F.embedding(pairs[0], encoded_users), F.embedding(pairs[1], encoded_items))

    def first_layers(self, means: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Both encoders' first layer over items, from their neighbours' `means` and their own `rows` [items, channels].

        One product of twice the width instead of four: narrow products mostly wait for memory.
        """
        layers = self.items.first, self.users.items
        weight = torch.cat([torch.cat([layer.neighbor.weight, layer.root.weight], dim=1) for layer in layers])
        bias = torch.cat([layer.neighbor.bias for layer in layers])
        of_items, of_users = linear(torch.cat([means, rows], dim=1), weight, bias).chunk(2, dim=1)
        return of_items.relu(), of_users.relu()

    def scores(self, users: Tensor, items: Tensor) -> Tensor:
        """The scores [pairs] of encoded users and items [pairs, channels]."""
        scores: Tensor = self.score(self.hidden(torch.cat([users, items], dim=1)).relu())
        return scores.squeeze(1)

    @torch.no_grad()
    def encode(self, graph: HeteroGraph, users: Tensor, items: Tensor, task: Task) -> tuple[Tensor, Tensor]:
        """Encode all users and items of the graph [nodes, channels] exactly, with all of their neighbours.

        `users` and `items` are the rows of this rank's own slices. A collective, layer by layer like `inference.infer`.
        """
        together, of_user = graph.relation(TOGETHER), graph.relation(OF_USER)
        item_count, user_count = graph.num_nodes[ITEM], graph.num_nodes[USER]
        own_items, own_users = own_slice(item_count), own_slice(user_count)
        rows = shared_rows([items], items, item_count, task)
        means = torch.cat([block.mean(rows) for _, block in blocks(together, own_items)])
        own = self.items.first.combine(means, items).relu()
        hidden = shared_rows([own], own, item_count, task)
        encoded_items = [self.items(block, hidden, own[part]) for part, block in blocks(together, own_items)]
        own = self.users.items.combine(means, items).relu()
        hidden = shared_rows([own], own, item_count, task)
        encoded_users = [self.users(block, rows, hidden, users[part]) for part, block in blocks(of_user, own_users)]
        return (
            shared_rows(encoded_users, encoded_users[0], user_count, task),
            shared_rows(encoded_items, encoded_items[0], item_count, task),
        )


def fan_outs(first: int, second: int) -> dict[tuple[str, str, str], tuple[int, ...]]:
    """The fan-out for the model: `first` items per user or item, and `second` for each of those."""
    return {OF_USER: (first,), TOGETHER: (first, second)}
