"""Parts of a graph with few edges between them, by METIS (Karypis and Kumar, SIAM J. Sci. Comput. 1998), in pymetis."""

from __future__ import annotations

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import rows_of
from clusterctl.shared.errors import TaskError


def parts(indptr: Tensor, indices: Tensor, number: int, *, recursive: bool = False) -> Tensor:
    """The part of each node, int64 in [0, number), for edges by target or by source.

    Directions, loops and repeated edges are ignored. Always the same for the same graph. Parts are about equal, but may
    be empty if there are few nodes. Raises TaskError if pymetis is missing.
    """
    try:
        import pymetis
    except ImportError:
        raise TaskError(
            "partitioning a graph needs pymetis", hint="install it on the nodes: pip install pymetis"
        ) from None
    nodes = indptr.numel() - 1
    if number <= 1 or nodes == 0:
        return torch.zeros(nodes, dtype=torch.int64)
    targets = rows_of(indptr, indices.numel())
    sources = indices.to(torch.int64)
    between = sources != targets
    sources, targets = sources[between], targets[between]
    both = torch.unique(torch.cat([targets * nodes + sources, sources * nodes + targets]))
    offsets = torch.searchsorted(both, torch.arange(nodes + 1) * nodes)
    neighbors = pymetis.CSRAdjacency(adj_starts=offsets.numpy(), adjacent=(both % nodes).numpy())
    _, found = pymetis.part_graph(number, neighbors, recursive=recursive, options=pymetis.Options(seed=0))
    return torch.tensor(found, dtype=torch.int64)
