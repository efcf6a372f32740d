"""Small graphs in PyG's format, and pyg-lib's walk through full neighbourhoods in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

BOUGHT, BOUGHT_BY, KNOWS = ("user", "bought", "item"), ("item", "bought_by", "user"), ("user", "knows", "user")
Node = tuple[int, int]  # the seed's number, the node's number


def one_type(nodes: int = 50, edges: int = 600, seed: int = 0) -> Data:
    """A graph with edges sorted by target, times of nodes and edges, weights, and the node number as its feature."""
    random = torch.Generator().manual_seed(seed)
    edge_index = _sorted(torch.randint(nodes, (2, edges), generator=random))
    return Data(
        x=torch.arange(nodes)[:, None].float(),
        edge_index=edge_index,
        edge_attr=torch.arange(edges),
        weight=torch.rand(edges, generator=random),
        time=torch.randint(20, (nodes,), generator=random),
        edge_time=torch.randint(20, (edges,), generator=random),
        num_nodes=nodes,
    )


def shop(users: int = 30, items: int = 40, edges: int = 300, seed: int = 0) -> HeteroData:
    """Users and items, with times of nodes and edges."""
    random = torch.Generator().manual_seed(seed)
    counts = {"user": users, "item": items}
    data = HeteroData()
    for node_type, count in counts.items():
        data[node_type].x = torch.arange(count)[:, None].float()
        data[node_type].time = torch.randint(20, (count,), generator=random)
    for edge_type in (BOUGHT, BOUGHT_BY, KNOWS):
        ends = [torch.randint(counts[end], (edges,), generator=random) for end in (edge_type[0], edge_type[2])]
        data[edge_type].edge_index = _sorted(torch.stack(ends))
        data[edge_type].edge_time = torch.randint(20, (edges,), generator=random)
        data[edge_type].weight = torch.rand(edges, generator=random)
    return data


def _sorted(edge_index: Tensor) -> Tensor:
    order = (edge_index[1] * (int(edge_index.max()) + 1) + edge_index[0]).argsort(stable=True)
    return edge_index[:, order]


def full_walk(
    edges: Mapping[tuple[str, str, str], Tensor],
    node_types: Sequence[str],
    seeds: Mapping[str, Sequence[Node]],
    hops: int,
    sees: Callable[[tuple[str, str, str], int, Node], bool] = lambda *_: True,
) -> tuple[dict[str, list[Node]], dict[tuple[str, str, str], list[list[int]]]]:
    """All nodes within `hops` of the seeds, and edges as [row of source, row of target, index], in pyg-lib's order.

    `sees` decides, from an edge type, the index of an edge and its target, whether the walk takes the edge.
    """
    nodes = {node_type: list(seeds.get(node_type, [])) for node_type in node_types}
    found: dict[tuple[str, str, str], list[list[int]]] = {edge_type: [] for edge_type in edges}
    slices = {node_type: (0, len(nodes[node_type])) for node_type in node_types}
    for _ in range(hops):
        for edge_type, (sources, targets) in edges.items():
            for row in range(*slices[edge_type[2]]):
                seed, target = nodes[edge_type[2]][row]
                for place in (targets == target).nonzero().squeeze(1).tolist():
                    if sees(edge_type, place, (seed, target)):
                        source = (seed, int(sources[place]))
                        if source not in nodes[edge_type[0]]:
                            nodes[edge_type[0]].append(source)
                        found[edge_type].append([nodes[edge_type[0]].index(source), row, place])
        slices = {node_type: (slices[node_type][1], len(nodes[node_type])) for node_type in node_types}
    return nodes, found
