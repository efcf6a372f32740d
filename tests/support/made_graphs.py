"""Small graphs: of users and items, with isolated ones and repeated edges, of papers and authors, and Cora."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from clusterctl.engine.data.ogb_like import (
    EdgePieces,
    LabelledNodes,
    write_archives,
    write_relations,
    write_tables,
)
from clusterctl.engine.data.own_relations import relations_of
from clusterctl.engine.data.reddit import read_raw
from clusterctl.engine.graph.recommender import ITEM, OF_USER, TOGETHER, USER
from clusterctl.engine.graph.storage import Graph, LabelledHeteroGraph, compressed
from clusterctl.engine.training.objectives.link import Interactions

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData


def random_shop(users: int = 40, items: int = 60, edges: int = 400, seed: int = 0) -> Interactions:
    """Every tenth user and item has no edge; some edges come twice."""
    random = torch.Generator().manual_seed(seed)
    pairs = torch.stack([torch.randint(count, (edges,), generator=random) for count in (items, users)])
    pairs = torch.cat([pairs, pairs[:, : edges // 5]], dim=1)
    pairs = pairs[:, (pairs % 10 != 0).all(0)]
    together = torch.randint(items, (2, 4 * items), generator=random)
    together = together[:, (together[0] != together[1]) & (together % 10 != 0).all(0)].unique(dim=1)
    of_user, of_items = compressed(pairs, users, items), compressed(together, items)
    splits = {}
    for number, name in enumerate(("val", "test")):
        splits[name] = torch.stack(
            [torch.randint(count, (25,), generator=random, dtype=torch.int32) for count in (users, items)]
        )
        splits[f"{name}_negatives"] = splits[name].flip(1) * (number + 1) % min(users, items)
    return Interactions(
        num_nodes={USER: users, ITEM: items},
        indptr={OF_USER: of_user[0], TOGETHER: of_items[0]},
        indices={OF_USER: of_user[1], TOGETHER: of_items[1]},
        x={},
        best_auc=math.nan,
        **splits,
    )


PAPER, AUTHOR, INSTITUTE = "paper", "author", "institute"
CITES, WRITES, WRITTEN_BY = (PAPER, "cites", PAPER), (AUTHOR, "writes", PAPER), (PAPER, "written_by", AUTHOR)
EMPLOYS = (INSTITUTE, "employs", AUTHOR)
LATEST = 20  # of the times
NODES = {PAPER: 60, AUTHOR: 40, INSTITUTE: 7}


def random_academy(dtype: torch.dtype = torch.float64) -> LabelledHeteroGraph:
    """No relation leads to an institute. In each relation, every tenth target has no edge."""
    random = torch.Generator().manual_seed(0)

    def drawn(source: str, target: str, count: int) -> torch.Tensor:
        ends = torch.stack([torch.randint(NODES[kind], (count,), generator=random) for kind in (source, target)])
        return ends[:, ends[1] % 10 != 3].unique(dim=1)

    writes = drawn(AUTHOR, PAPER, 200)
    edges = {
        CITES: drawn(PAPER, PAPER, 300),
        WRITES: writes,
        WRITTEN_BY: writes.flip(0),
        EMPLOYS: drawn(INSTITUTE, AUTHOR, 60),
    }
    stored = {kind: compressed(ends, NODES[kind[2]], NODES[kind[0]]) for kind, ends in edges.items()}
    widths = {PAPER: 6, AUTHOR: 5, INSTITUTE: 4}
    y = torch.randint(3, (NODES[PAPER],), generator=random)
    x = {kind: torch.randn(NODES[kind], width, generator=random, dtype=dtype) for kind, width in widths.items()}
    x[PAPER][torch.arange(len(y)), y] += 2
    train, val, test = torch.randperm(NODES[PAPER], generator=random).tensor_split([30, 45])
    return LabelledHeteroGraph(
        NODES,
        {kind: indptr for kind, (indptr, _) in stored.items()},
        {kind: indices for kind, (_, indices) in stored.items()},
        x,
        PAPER,
        y,
        train.sort().values,
        val.sort().values,
        test.sort().values,
        num_classes=3,
    )


def bare_academy(*kinds: str, dtype: torch.dtype = torch.float64) -> LabelledHeteroGraph:
    """The academy without features of these types."""
    graph = random_academy(dtype)
    return replace(graph, x={kind: x for kind, x in graph.x.items() if kind not in kinds})


def dated_academy(seed: int = 0, *, edges_too: bool = False, dtype: torch.dtype = torch.float64) -> LabelledHeteroGraph:
    """The academy with times of papers, or of papers and of employments; rows name papers at any time."""
    from torch_geometric.data import HeteroData  # late, as below: programs of ranks import this module

    graph, random = random_academy(dtype), torch.Generator().manual_seed(seed)
    data = HeteroData()
    for kind, x in graph.x.items():
        data[kind].x = x
    for relation in graph.indptr:
        data[relation].edge_index = graph.relation(relation).edge_index

    def drawn(count: int) -> torch.Tensor:
        return torch.randint(LATEST, (count,), generator=random)

    data[PAPER].time = drawn(NODES[PAPER])
    if edges_too:
        data[EMPLOYS].time = drawn(graph.indices[EMPLOYS].numel())
        data[CITES].edge_time = drawn(graph.indices[CITES].numel())
    rows = 30
    data[PAPER].seed_index = torch.randint(NODES[PAPER], (rows,), generator=random)
    data[PAPER].seed_time = drawn(rows)
    data[PAPER].y = torch.arange(rows) % 3
    for number, name in enumerate(("train", "val", "test")):
        data[PAPER][f"{name}_mask"] = torch.arange(rows) % 3 == number
    return relations_of(data, "dated")


# Graphs in PyG's format, and pyg-lib's walk through full neighbourhoods in plain Python.

BOUGHT, BOUGHT_BY, KNOWS = ("user", "bought", "item"), ("item", "bought_by", "user"), ("user", "knows", "user")
Node = tuple[int, int]  # the seed's number, the node's number


def one_type(nodes: int = 50, edges: int = 600, seed: int = 0) -> Data:
    """A graph with edges sorted by target, times of nodes and edges, weights, and the node number as its feature."""
    from torch_geometric.data import Data

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
    from torch_geometric.data import HeteroData

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


# Cora in each layout of the Open Graph Benchmark.

LAYOUTS = {
    "ogbn-arxiv": ("write_tables", "time"),
    "ogbn-products": ("write_tables", "sales_ranking"),
    "ogbn-papers100M": ("write_archives", "time"),
    "ogbn-mag": ("write_relations", "time"),
}


def cora(scratch: Path) -> Graph:
    from support.ranks import CORA

    return read_raw(CORA, scratch)


def nodes_of(graph: Graph) -> LabelledNodes:
    split = (graph.train.numpy(), graph.val.numpy(), graph.test.numpy())
    return LabelledNodes(lambda: np.array_split(graph.x.numpy(), 3), graph.num_features, graph.y.numpy(), split)


def ends(sources: torch.Tensor, targets: torch.Tensor) -> EdgePieces:
    """Edges in pieces, as generators produce them."""
    return EdgePieces(
        sources.numel(),
        lambda: np.array_split(sources.numpy(), 3),
        lambda: np.array_split(targets.numpy(), 3),
    )


def half_of(graph: Graph) -> EdgePieces:
    """Each edge in one direction, like citations: for half of them from the larger node to the smaller."""
    targets = torch.arange(graph.num_nodes).repeat_interleave(graph.degree)
    sources = graph.indices.to(torch.int64)
    once = torch.where((sources + targets) % 2 == 0, sources < targets, sources > targets)
    return ends(sources[once], targets[once])


def write_cora(name: str, root: Path, graph: Graph) -> Path:
    """Write `graph`, which has each edge in both directions, in the layout of the data set `name`."""
    nodes, citations = nodes_of(graph), half_of(graph)
    if name == "ogbn-mag":
        authors = torch.arange(40) * 7
        edges = {WRITES: ends(authors % 20, authors), CITES: citations}
        write_relations(root, "paper", nodes, {"author": 20, "paper": graph.num_nodes}, edges)
    elif name == "ogbn-papers100M":
        write_archives(root, nodes, citations)
    else:
        write_tables(root, nodes, citations, LAYOUTS[name][1])
    return root
