"""Cora in each layout of the Open Graph Benchmark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from clusterctl.engine.data.generated.ogb_like import (
    EdgePieces,
    LabelledNodes,
    write_archives,
    write_relations,
    write_tables,
)
from clusterctl.engine.data.reddit import read_raw
from clusterctl.engine.graph.storage import Graph

CITES = ("paper", "cites", "paper")
WRITES = ("author", "writes", "paper")
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
