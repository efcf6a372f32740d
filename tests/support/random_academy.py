"""A small graph of papers, authors and institutes, with isolated nodes; features differ in width."""

from __future__ import annotations

import torch

from clusterctl.engine.graph.storage import LabelledHeteroGraph, compressed

PAPER, AUTHOR, INSTITUTE = "paper", "author", "institute"
CITES, WRITES, WRITTEN_BY = (PAPER, "cites", PAPER), (AUTHOR, "writes", PAPER), (PAPER, "written_by", AUTHOR)
EMPLOYS = (INSTITUTE, "employs", AUTHOR)
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
