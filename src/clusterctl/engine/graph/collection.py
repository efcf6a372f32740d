"""Many small labelled graphs, concatenated in one set of arrays, and batches cut out of them without a loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from clusterctl.engine.graph.blocks import moved, rows_of
from clusterctl.engine.graph.storage import compressed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Collection:
    """Graph `g` has the nodes from `bounds[g]` up to `bounds[g + 1]`. Edges are stored by target, as in `Graph`.

    It stays on the CPU, where the size of a batch is known; on a GPU computing the size would synchronize.
    """

    bounds: Tensor  # int64 [graphs + 1]
    indptr: Tensor  # int64 [nodes + 1]
    indices: Tensor  # int32 [edges], sources as node ids of the whole collection
    x: Tensor  # float or int64 [nodes, features]; no columns if the data set has no features
    y: Tensor  # int64 [graphs] classes, or float [graphs, targets], NaN where unknown
    num_classes: int  # or of targets
    given_edges: Tensor | None = None  # int32 [2, edges], in the user's order, graph by graph; None: as in `indices`
    of_nodes: dict[str, Tensor] = field(default_factory=dict)  # more of the user's attributes, such as pos [nodes, 3]
    of_edges: dict[str, Tensor] = field(default_factory=dict)  # such as edge_attr, in the order of `given_edges`
    of_graphs: dict[str, Tensor] = field(default_factory=dict)  # with one row for each graph
    splits: dict[str, Tensor] = field(default_factory=dict)  # int64, the graphs of each; empty: the data has none

    @property
    def num_graphs(self) -> int:
        return self.bounds.numel() - 1

    @property
    def num_nodes(self) -> int:
        return self.indptr.numel() - 1

    @property
    def degree(self) -> Tensor:
        """int64 [nodes]: incoming edges."""
        return self.indptr.diff()

    def batch(self, graphs: Tensor) -> GraphBatch:
        """The graphs with these int64 numbers, in this order; a number may repeat."""
        numbers, every_bound = graphs.numpy(), self.bounds.numpy()
        first, last = every_bound[numbers], every_bound[numbers + 1]
        bounds, nodes = _ranges(first, last - first)
        incoming = _cut(self.indptr, self.indices, first, last, bounds, nodes)
        symmetric = self.outgoing[1] is self.indices
        outgoing = incoming if symmetric else _cut(*self.outgoing, first, last, bounds, nodes)
        return GraphBatch(torch.from_numpy(nodes), torch.from_numpy(bounds), incoming, outgoing)

    def as_given(self, graphs: Tensor) -> GivenBatch:
        """Like `batch`, as PyG's loaders give graphs to models: edges in the user's order."""
        numbers, every_bound, every_offset = graphs.numpy(), self.bounds.numpy(), self.indptr.numpy()
        first, last = every_bound[numbers], every_bound[numbers + 1]
        bounds, own_nodes = _ranges(first, last - first)
        _, *found = _edges_of(every_offset, first, last, bounds)
        edges, shift, ptr, nodes = map(torch.from_numpy, (*found, bounds, own_nodes))
        of_graph = rows_of(ptr, nodes.numel())
        return GivenBatch(graphs, nodes, edges, self._edges.index_select(1, edges) + shift, of_graph, ptr)

    @cached_property
    def _edges(self) -> Tensor:
        if self.given_edges is not None:
            return self.given_edges
        targets = torch.arange(self.num_nodes, dtype=torch.int32).repeat_interleave(self.degree)
        return torch.stack([self.indices, targets])

    @property
    def sizes(self) -> Tensor:
        """int64 [graphs]: the nodes and edges of each graph, together."""
        return (self.bounds + self.indptr.index_select(0, self.bounds)).diff()

    @cached_property
    def outgoing(self) -> tuple[Tensor, Tensor]:
        """`indptr` and `indices` of the outgoing edges; the same tensor objects if every edge has its reverse."""
        targets = torch.arange(self.num_nodes, device=self.indptr.device).repeat_interleave(self.degree)
        indptr, indices = compressed(torch.stack([targets, self.indices.to(torch.int64)]), self.num_nodes)
        same = torch.equal(indptr, self.indptr) and torch.equal(indices, self.indices)
        return (self.indptr, self.indices) if same else (indptr, indices)


Rows = tuple[Tensor, Tensor]
"""int64 offsets [nodes + 1] and int64 rows: those of node `i` are `rows[offsets[i]:offsets[i + 1]]`."""


@dataclass(frozen=True)
class GraphBatch:
    """Several graphs of a collection as one disconnected graph."""

    nodes: Tensor  # int64 [nodes], ids in the collection
    bounds: Tensor  # int64 [graphs + 1], rows of each graph's nodes
    incoming: Rows  # the sources of the edges into each row
    outgoing: Rows  # the targets of the edges out of each row

    def to(self, device: torch.device) -> GraphBatch:
        """The batch on `device`."""
        nodes, bounds, *incoming = moved((self.nodes, self.bounds, *self.incoming), device)
        outgoing = incoming if self.outgoing is self.incoming else moved(self.outgoing, device)
        return GraphBatch(nodes, bounds, cast("Rows", tuple(incoming)), cast("Rows", tuple(outgoing)))

    def neighbor_sum(self, rows: Tensor) -> Tensor:
        """The sum of each node's neighbours' rows, zero for isolated nodes."""
        summed: Tensor = _NeighborSum.apply(rows, self.incoming, self.outgoing)  # type: ignore[no-untyped-call]
        return summed

    def readout(self, rows: Tensor, mode: str) -> Tensor:
        """The "sum" or "mean" over each graph's rows."""
        sizes = self.bounds.diff()
        parts = sizes.clamp(min=1)[:, None] if mode == "mean" else None
        return _Readout.apply(rows, self.bounds, sizes, parts)  # type: ignore[no-any-return, no-untyped-call]


class GivenBatch(NamedTuple):
    """Several graphs of a collection as one disconnected graph, in the format of PyG's `Batch`; on the CPU."""

    graphs: Tensor  # int64 [graphs], numbers in the collection
    nodes: Tensor  # int64 [nodes], numbers in the collection
    edges: Tensor  # int64 [edges], numbers in the collection
    edge_index: Tensor  # int64 [2, edges], rows of `nodes`
    batch: Tensor  # int64 [nodes], the place of each node's graph in `graphs`
    ptr: Tensor  # int64 [graphs + 1], the first node of each graph


class _NeighborSum(torch.autograd.Function):
    """Its gradient is a neighbour sum along the reversed edges; torch's own gradient sorts the edges every time."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, incoming: Rows, outgoing: Rows) -> Tensor:
        ctx.outgoing = outgoing
        return sum_rows(incoming, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return sum_rows(ctx.outgoing, gradients[0].contiguous()), None, None


class _Readout(torch.autograd.Function):
    """The sum of each graph's rows, divided by `parts` for a mean. Each row gets the gradient of its graph."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, bounds: Tensor, sizes: Tensor, parts: Tensor | None) -> Tensor:
        ctx.sizes, ctx.rows, ctx.parts = sizes, rows.size(0), parts
        summed = sum_rows((bounds, torch.arange(rows.size(0), device=rows.device)), rows)
        return summed if parts is None else summed.div_(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        share = gradient if ctx.parts is None else gradient / ctx.parts
        return share.repeat_interleave(ctx.sizes, 0, output_size=ctx.rows), None, None, None


def sum_rows(taken: Rows, rows: Tensor) -> Tensor:
    """The sum of the `rows` in each range of `taken`, zero for empty ranges."""
    offsets, places = taken
    return F.embedding_bag(places, rows, offsets, mode="sum", include_last_offset=True)


def _cut(indptr: Tensor, indices: Tensor, first: Numbers, last: Numbers, bounds: Numbers, nodes: Numbers) -> Rows:
    """The edges of the graphs with the nodes from `first` up to `last`, as rows of the batch."""
    offsets = indptr.numpy()
    edge_bounds, edges, shift = _edges_of(offsets, first, last, bounds)
    ends = np.zeros(nodes.size + 1, dtype=np.int64)
    np.add(offsets[nodes + 1], np.repeat(edge_bounds[:-1] - offsets[first], last - first), out=ends[1:])
    return torch.from_numpy(ends), torch.from_numpy(indices.numpy()[edges] + shift)


def _edges_of(offsets: Numbers, first: Numbers, last: Numbers, bounds: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Where each graph's edges begin in the batch, the edges, and what turns their nodes into rows of the batch."""
    begin = offsets[first]
    counts = offsets[last] - begin
    return *_ranges(begin, counts), np.repeat(bounds[:-1] - first, counts)


def joined_graphs(graphs: Sequence[tuple[int, Tensor]]) -> tuple[Tensor, Tensor]:
    """`bounds`, and all edges as int64 [2, edges] with node ids of the collection, from (number of nodes, edges)."""
    bounds = torch.tensor([0, *(nodes for nodes, _ in graphs)]).cumsum(0)
    return bounds, torch.cat([edges + start for (_, edges), start in zip(graphs, bounds, strict=False)], dim=1)


def _ranges(starts: Numbers, sizes: Numbers) -> tuple[Numbers, Numbers]:
    """The offsets of these ranges when concatenated, and their concatenation.

    In numpy, whose calls take less time than torch's on the few numbers of a batch.
    """
    bounds = np.zeros(sizes.size + 1, dtype=np.int64)
    np.cumsum(sizes, out=bounds[1:])
    return bounds, np.arange(bounds[-1]) + np.repeat(starts - bounds[:-1], sizes)
