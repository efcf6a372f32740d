"""The recommender matches the model of PyG's example: same outputs and gradients as with PyG's layers."""

from __future__ import annotations

import torch
from support.made_graphs import random_shop
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

from clusterctl.engine.graph.blocks import Block
from clusterctl.engine.graph.convolutions import SageConv
from clusterctl.engine.graph.hops import HeteroSample
from clusterctl.engine.graph.recommender import ITEM, OF_USER, TOGETHER, USER, Recommender, fan_outs
from clusterctl.engine.graph.sampling import HeteroSampler

CHANNELS = 6


def edges_of(block: Block) -> Tensor:
    targets = torch.arange(block.nodes.numel()).repeat_interleave(block.offsets.diff())
    return torch.stack([block.columns.to(torch.int64), targets])


def pyg_conv(layer: SageConv) -> nn.Module:
    conv = SAGEConv((CHANNELS, CHANNELS), CHANNELS).double()
    conv.lin_l.weight, conv.lin_l.bias, conv.lin_r.weight = (
        layer.neighbor.weight,
        layer.neighbor.bias,
        layer.root.weight,
    )
    return conv  # type: ignore[no-any-return]


def pyg_scores(
    model: Recommender, sample: HeteroSample, users: Tensor, items: Tensor, pairs: tuple[Tensor, Tensor]
) -> Tensor:
    """The scores as in PyG's example, with PyG's convolutions on the same edges."""
    inner, outer = sample.hops
    rows = items[: outer[TOGETHER].nodes.numel()]
    seeds = inner[TOGETHER].nodes.numel()

    def first(layer: SageConv) -> Tensor:
        return pyg_conv(layer)((items, rows), edges_of(outer[TOGETHER])).relu()  # type: ignore[no-any-return]

    hidden = first(model.items.first)
    of_items = model.items.last(
        pyg_conv(model.items.second)((hidden, hidden[:seeds]), edges_of(inner[TOGETHER])).relu()
    )
    of_user = edges_of(inner[OF_USER])
    state = pyg_conv(model.users.first)((rows, users), of_user).relu()
    state = pyg_conv(model.users.second)((first(model.users.items), state), of_user).relu()
    of_users = model.users.last(state)
    both = torch.cat([of_users[pairs[0]], of_items[pairs[1]]], dim=1)
    return model.score(model.hidden(both).relu()).squeeze(1)  # type: ignore[no-any-return]


def test_scores_and_gradients_match_pyg_on_the_same_sample() -> None:
    torch.manual_seed(0)
    graph = random_shop()
    seeds = {USER: torch.tensor([3, 10, 20, 33, 7]), ITEM: torch.tensor([5, 2, 40, 10, 11, 12])}  # 10, 20, 40: isolated
    sample = HeteroSampler(graph, fan_outs(4, 3), seed=1).sample(seeds, 1, 0)
    assert int(sample.hops[0][OF_USER].offsets.diff().min()) == 0
    assert int(sample.hops[1][TOGETHER].offsets.diff().min()) == 0
    model = Recommender(CHANNELS).double()
    rows = [torch.randn(sample.nodes[kind].numel(), CHANNELS, dtype=torch.float64) for kind in (USER, ITEM)]
    pairs = (torch.tensor([0, 1, 2, 3, 4, 0]), torch.tensor([0, 1, 2, 3, 4, 5]))

    def outputs_and_gradients(scores: object) -> list[Tensor]:
        users, items = (table.clone().requires_grad_() for table in rows)
        model.zero_grad()
        out = scores(users, items)  # type: ignore[operator]
        out.square().sum().backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        assert len(gradients) == len(list(model.parameters()))
        return [out.detach(), users.grad, items.grad, *gradients]

    ours = outputs_and_gradients(lambda users, items: model(sample, users, items, pairs))
    theirs = outputs_and_gradients(lambda users, items: pyg_scores(model, sample, users, items, pairs))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
