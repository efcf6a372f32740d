"""Small graphs: of users and items, with isolated ones and repeated edges, and of papers, authors and institutes."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from clusterctl.engine.data.own_relations import relations_of
from clusterctl.engine.graph.recommender import ITEM, OF_USER, TOGETHER, USER
from clusterctl.engine.graph.storage import LabelledHeteroGraph, compressed
from clusterctl.engine.training.objectives.link import Interactions


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
    from torch_geometric.data import HeteroData

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
