"""How a prepared graph lies on disk: neighbours together, and features in bfloat16, for fewer and smaller reads.

Nodes are renumbered, with their labels, splits and edges. Clusters are found by label propagation: again and again,
each node joins the cluster of most of its neighbours. This is done once, when the data set is prepared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import edge_ranges
from clusterctl.engine.graph.hashing import Purpose, below, draws, stream
from clusterctl.engine.graph.storage import Graph, Recipe
from clusterctl.shared.errors import Cause, TaskError

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.engine.graph.blocks import Adjacency

_ROUNDS = 24
_SETTLED = 200  # one of this many nodes has moved in a round: further rounds gain little
_VOTES = 24  # neighbours that a node looks at; with 8, clusters of 10 neighbours do not form
_MOST_NODES = 512  # of a cluster: it is read in one request if its rows are narrow
_NODES_AT_ONCE = 1 << 14
_ROWS_AT_ONCE = 1 << 14
_EDGES_AT_ONCE = 1 << 22


def arranged(recipe: Recipe[Graph], order: str, precision: str) -> Recipe[Graph]:
    """`recipe` with the nodes and features as `data.order` and `data.disk_precision` require."""
    if (order, precision) == ("given", "given"):
        return recipe

    def build(scratch: Path) -> Graph:
        graph: Any = recipe.build(scratch)
        if not isinstance(graph, Graph):
            key = "order" if order != "given" else "disk_precision"
            raise TaskError(f"data.{key} is not supported on several types of nodes", "remove this key", Cause.USER)
        dtype = torch.bfloat16 if precision == "bfloat16" else graph.x.dtype
        if order == "neighbours":
            return renumbered(graph, neighbour_order(graph), dtype, scratch)
        return replace(graph, x=_features(graph.x, torch.arange(graph.num_nodes), dtype, scratch))

    more = {"order": order, "disk_precision": precision} | ({"numbers": True} if order == "neighbours" else {})
    return Recipe(recipe.name, recipe.identity | more, build)


def renumbered(graph: Graph, order: Tensor, dtype: torch.dtype, scratch: Path) -> Graph:
    """The graph whose node `i` is node `order[i]` (int64 [nodes]) of `graph`, with features of `dtype`.

    Its large tensors are mapped from files in `scratch`. Each list of sources keeps its order, as LABOR requires.
    """
    place = torch.empty(graph.num_nodes, dtype=torch.int32)
    place[order] = torch.arange(graph.num_nodes, dtype=torch.int32)
    degrees = graph.degree[order]
    indptr = torch.zeros_like(graph.indptr)
    torch.cumsum(degrees, 0, out=indptr[1:])
    indices = _on_disk(scratch / "arranged-indices", (graph.indices.numel(),), torch.int32)
    given = {name: values for name in ("edge_weight", "edge_attr") if (values := getattr(graph, name)) is not None}
    moved = {
        name: _on_disk(scratch / f"arranged-{name}", tuple(values.shape), values.dtype)
        for name, values in given.items()
    }
    for first, last in edge_ranges(indptr, _EDGES_AT_ONCE):
        start, stop = int(indptr[first]), int(indptr[last])
        moved_by = graph.indptr[order[first:last]] - indptr[first:last]
        edges = torch.arange(start, stop) + moved_by.repeat_interleave(degrees[first:last], output_size=stop - start)
        indices[start:stop] = place[graph.indices[edges].long()]
        for name, values in given.items():
            moved[name][start:stop] = values[edges]
    x = _features(graph.x, order, dtype, scratch)
    train, val, test = (place[nodes].sort().values.long() for nodes in (graph.train, graph.val, graph.test))
    numbers = order.to(torch.int32)
    return Graph(indptr, indices, x, graph.y[order], train, val, test, graph.num_classes, numbers, **moved)


def _features(table: Tensor, order: Tensor, dtype: torch.dtype, scratch: Path) -> Tensor:
    rows = _on_disk(scratch / "arranged-features", tuple(table.shape), dtype)
    for start in range(0, len(order), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        rows[part] = table[order[part]].to(dtype)
    return rows


def _on_disk(path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    size = torch.Size(shape).numel()
    return torch.from_file(str(path), shared=True, size=size, dtype=dtype).view(shape) if size else torch.empty(shape)


def neighbour_order(graph: Adjacency) -> Tensor:
    """All nodes, int64, cluster by cluster; clusters and the nodes in each are in their previous order.

    It takes about 40 bytes per node, and is the same in every process.
    """
    clusters = torch.arange(graph.indptr.numel() - 1, dtype=torch.int32)
    if not graph.indices.numel():
        return clusters.long()
    sizes = torch.ones_like(clusters)
    # A vote counts less if many nodes have this neighbour: hubs are near everything.
    weights = torch.bincount(graph.indices, minlength=len(clusters)).clamp_(min=1).float().reciprocal_()
    for number in range(_ROUNDS):
        moved = 0
        for start in range(0, len(clusters), _NODES_AT_ONCE):
            nodes = torch.arange(start, min(len(clusters), start + _NODES_AT_ONCE))
            # About half of the nodes, others in each round: if all moved at once, neighbours could swap forever.
            nodes = nodes[draws(stream(Purpose.ORDER, number), nodes) < 0]
            before, after = clusters[nodes], _joined(graph, nodes, clusters, sizes, weights, number)
            clusters[nodes] = after
            sizes.index_add_(0, before, torch.full_like(before, -1)).index_add_(0, after, torch.ones_like(after))
            moved += int((before != after).sum())
        if moved * _SETTLED < len(clusters):
            break
    return clusters.argsort(stable=True)


def _joined(graph: Adjacency, nodes: Tensor, clusters: Tensor, sizes: Tensor, weights: Tensor, number: int) -> Tensor:
    """The cluster that each of these nodes joins, int32 [nodes]: its own unless another has more votes, and room.

    If a node has more than `_VOTES` neighbours, other ones vote in each round.
    """
    first, degrees = graph.indptr[nodes], graph.degree[nodes]
    some = degrees.clamp(min=1)
    offsets = below(draws(stream(Purpose.ORDER, number, 1), nodes), some)
    lanes = torch.arange(_VOTES)
    edges = first[:, None] + (offsets[:, None] + lanes) % some[:, None]
    voters = graph.indices[edges.clamp_(max=graph.indices.numel() - 1)].long()
    own, theirs = clusters[nodes][:, None], clusters[voters]
    counts = (lanes < degrees[:, None]) & ((sizes[theirs.long()] < _MOST_NODES) | (theirs == own))
    votes = weights[voters] * counts
    of_each = ((theirs[:, :, None] == theirs[:, None, :]) * votes[:, None, :]).sum(2)
    most, which = of_each.max(1)
    of_own = (votes * (theirs == own)).sum(1)
    return torch.where(most > of_own, theirs.gather(1, which[:, None]).squeeze(1), own.squeeze(1))
