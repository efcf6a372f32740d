"""Sampling by edge weights with PyG's loaders."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
import torch
from support.made_graphs import BOUGHT, one_type, shop
from torch import Tensor
from torch_geometric.data import Data

from clusterctl.pyg import NeighborLoader

WEIGHTS = [1.0, 2.0, 0.0, 4.0, 3.0]
TIMES = 6000


def star(weights: list[float]) -> Data:
    """Node 0 with a neighbour for each weight."""
    leaves = len(weights)
    ends = torch.stack([torch.arange(1, leaves + 1), torch.zeros(leaves, dtype=torch.int64)])
    return Data(edge_index=ends, weight=torch.tensor(weights), num_nodes=leaves + 1)


def drawn(weights: list[float], count: int, **options: Any) -> Tensor:
    """`TIMES` samples of the star, as [TIMES, count] places of edges, in batch order."""
    seeds = torch.zeros(TIMES, dtype=torch.int64)
    torch.manual_seed(0)
    loader = NeighborLoader(
        star(weights), [count], seeds, weight_attr="weight", disjoint=True, batch_size=2000, **options
    )
    return torch.cat([batch.e_id.view(-1, count) for batch in loader])


def chi_square(seen: Tensor, share: Tensor) -> float:
    wanted = share * seen.sum()
    return float(((seen - wanted) ** 2 / wanted)[share > 0].sum())


def test_one_neighbour_is_drawn_by_its_weight() -> None:
    seen = drawn(WEIGHTS, 1).flatten().bincount(minlength=5)
    assert seen[2] == 0
    assert chi_square(seen, torch.tensor(WEIGHTS) / 10) < 16.3  # 3 degrees of freedom, p = 0.001


def test_without_replacement_draws_are_sequential_among_the_rest() -> None:
    pairs = drawn(WEIGHTS, 2)
    seen, share = [], []
    for first, second in permutations(range(5), 2):
        seen.append(int(((pairs[:, 0] == first) & (pairs[:, 1] == second)).sum()))
        share.append(WEIGHTS[first] / 10 * WEIGHTS[second] / (10 - WEIGHTS[first]))
    assert sum(seen) == TIMES
    assert chi_square(torch.tensor(seen), torch.tensor(share)) < 31.3  # 11 degrees of freedom, p = 0.001


def test_with_replacement_every_draw_is_by_weight() -> None:
    pairs = drawn(WEIGHTS, 2, replace=True)
    for draw in pairs.t():
        assert chi_square(draw.bincount(minlength=5), torch.tensor(WEIGHTS) / 10) < 16.3
    together = float(((pairs[:, 0] == 3) & (pairs[:, 1] == 3)).float().mean())
    assert together == pytest.approx(0.16, abs=0.02)


def test_full_neighbourhoods_ignore_the_weights() -> None:
    assert drawn(WEIGHTS, 5)[0].tolist() == [0, 1, 2, 3, 4]
    graph = one_type()
    (batch,) = NeighborLoader(graph, [-1], torch.arange(5), weight_attr="weight", batch_size=5)
    assert batch.e_id.numel() == int((graph.edge_index[1] < 5).sum())


def test_weights_of_unsorted_edges_stay_with_their_edges() -> None:
    graph = one_type()
    order = torch.randperm(600, generator=torch.Generator().manual_seed(0))
    graph.edge_index, graph.weight = graph.edge_index[:, order], (torch.arange(600) % 2).float()
    (batch,) = NeighborLoader(graph, [2], torch.arange(50), weight_attr="weight", batch_size=50)
    heavy = torch.bincount(graph.edge_index[1], graph.weight, minlength=50)
    enough = heavy[batch.n_id[batch.edge_index[1]]] >= 2
    assert enough.any()
    assert (graph.weight[batch.e_id][enough] == 1).all()
    assert torch.equal(batch.n_id[batch.edge_index], graph.edge_index[:, batch.e_id])


@pytest.mark.parametrize("replace", [False, True])
def test_typed_neighbours_are_drawn_by_weight(replace: bool) -> None:
    graph = shop()
    for edge_type in graph.edge_types:
        graph[edge_type].weight = (torch.arange(300) % 2).float()
    (batch,) = NeighborLoader(graph, [1, 1], ("item", None), weight_attr="weight", batch_size=40, replace=replace)
    heavy = torch.bincount(graph[BOUGHT].edge_index[1], graph[BOUGHT].weight, minlength=40)
    assert (heavy > 0).all()
    assert (graph[BOUGHT].weight[batch[BOUGHT].e_id] == 1).all()


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0, -1.0, 2.0], "element < 0"),
        ([1.0, float("inf"), 2.0], "probability tensor contains either `inf`, `nan`"),
        ([0.0, 0.0, 0.0], "sum of probabilities <= 0"),
    ],
)
def test_weights_that_torch_rejects_are_rejected(weights: list[float], message: str, replace: bool) -> None:
    with pytest.raises(RuntimeError, match=message):
        drawn(weights, 2, replace=replace)
