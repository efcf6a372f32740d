"""One hop of a sampled neighbourhood: a bipartite piece of the graph from source rows to target nodes, or its edges.

Also how ranks divide the work on a whole graph (`own_slice`, `slices`), how tensors reach a GPU (`moved`), and matrix
products of rows for cases in which torch picks the slower library (`linear`).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial, reduce
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


_WORTH_COMPILING = 1 << 26  # multiplications; oneDNN compiles a kernel, in about 0.5 ms, for every number of rows
# The speed of oneDNN's gradient of the weights varies by a factor of two with the prime factors of the number of rows.
# It finds good blocks for a piece of this many, and for fewer if `_FACTOR` divides their number.
_PIECE, _FACTOR = 5118, 5
_WORTH_PIECES = 1024  # rows: with fewer, those that are left over cost more than is gained


class Linear(nn.Linear):
    """`torch.nn.Linear` computed by `linear`."""

    def forward(self, rows: Tensor) -> Tensor:
        return linear(rows, self.weight, self.bias)


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`rows @ weight.T + bias`: [rows, in], [out, in] and [out] make [rows, out].

    For float32 products on a CPU, torch calls MKL, which uses AVX-512 only on Intel's processors. For convolutions it
    calls oneDNN, which uses it on AMD's too. A 1x1 convolution over a line of pixels is the same product, and 2.4 times
    as fast on an EPYC (Zen 5, torch 2.13), gradients included.
    """
    is_faster = (
        rows.device.type == "cpu"
        and rows.dtype == torch.float32
        and rows.size(0) * weight.numel() >= _WORTH_COMPILING
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and not _is_intels()
    )
    if not is_faster:
        return F.linear(rows, weight, bias)
    in_pieces = (
        len(rows) >= _WORTH_PIECES
        and torch.is_grad_enabled()
        and weight.requires_grad
        and not torch.is_autocast_enabled("cpu")  # it would convert what the gradient's function does not know of
    )
    product: Any = _InPieces.apply if in_pieces else _product
    out: Tensor = product(rows, weight, bias)
    return out


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # With one pixel the dilation has no effect, except that torch then uses oneDNN on a single thread too.
    pixels = F.conv2d(_line(rows), weight[:, :, None, None], bias, dilation=2).permute(0, 2, 3, 1)
    return pixels.squeeze((0, 1))  # the gradient of pixels[0, 0] would be copied twice, into new zeros


def _line(rows: Tensor) -> Tensor:
    """The rows as an image of one line: batch, channels, height, width. The bytes stay in place."""
    return rows.contiguous()[None, None].permute(0, 3, 1, 2)


class _InPieces(torch.autograd.Function):
    """`_product` whose gradient of the weights is added up over `_pieces` of the rows."""

    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _product(rows, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,), (rows, weight) = gradients, ctx.saved_tensors
        of_rows, of_weight, of_bias = ctx.needs_input_grad
        found: list[Tensor | None] = [None, None, gradient.sum(0) if of_bias else None]
        if of_rows:
            found[0] = _product(gradient, weight.t(), None)
        if of_weight:
            sizes = _pieces(len(rows))
            *pieces, (some, passed) = zip(torch.split(rows, sizes), torch.split(gradient, sizes), strict=True)
            of_piece: Any = partial(conv2d_weight, weight_size=weight[:, :, None, None].shape, dilation=2)
            parts = (of_piece(_line(taken), grad_output=_line(given)) for taken, given in pieces)
            found[1] = torch.addmm(reduce(torch.add, parts).view_as(weight), passed.t(), some)
        return tuple(found)


def _pieces(rows: int) -> list[int]:
    """As many rows, in pieces of numbers that oneDNN is fast for, and last the 0 to `_FACTOR` - 1 rows left over."""
    whole, rest = divmod(rows, _PIECE)
    left = rest % _FACTOR
    return [*[_PIECE] * whole, *([rest - left] if rest > left else []), left]


@cache
def has_numba() -> bool:
    """Whether loops can be compiled: numba is optional."""
    return find_spec("numba") is not None


def uses_loops() -> bool:
    """Whether some loops are compiled in this process, so that further ones cost little."""
    return "clusterctl.engine.graph.compiled" in sys.modules


@cache
def _is_intels() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False


def rounded(count: int) -> int:
    """Round up by at most 1/32, so that few different numbers of rows occur and oneDNN compiles few kernels."""
    return count + -count % (1 << max(0, count.bit_length() - 6))


_EDGES_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Adjacency:
    """Edges by target (CSC): the sources of those into `v` are `indices[indptr[v]:indptr[v + 1]]`.

    For a GPU, `indices` may stay in the host's memory, where samplers then work; `sources` reads them for both.
    """

    indptr: Tensor  # int64 [targets + 1]
    indices: Tensor  # int32 [edges]; ascending for each target, or in one order of all sources; duplicates are adjacent

    @cached_property
    def degree(self) -> Tensor:
        """int64 [targets]: incoming edges."""
        return self.indptr.diff()

    @cached_property
    def degree_without_loops(self) -> Tensor:
        """int64 [targets]: incoming edges from other nodes, if sources and targets are the same nodes."""
        loops, edges = torch.zeros_like(self.degree), self.indices.numel()
        whole = edges <= _EDGES_AT_ONCE  # in one piece no value is read, which would synchronize a GPU
        for start, stop in [(0, loops.numel())] if whole else edge_ranges(self.indptr, _EDGES_AT_ONCE):
            first, last = (0, edges) if whole else (int(self.indptr[start]), int(self.indptr[stop]))
            nodes = torch.arange(start, stop, device=loops.device)
            targets = nodes.repeat_interleave(self.degree[start:stop], output_size=last - first)
            loops.index_add_(0, targets, (self.sources(slice(first, last)) == targets).to(torch.int64))
        return self.degree - loops

    @property
    def edge_index(self) -> Tensor:
        """int64 [2, edges]: the source and the target of each edge, as in PyG."""
        return torch.stack([self.sources(slice(None)).to(torch.int64), rows_of(self.indptr, self.indices.numel())])

    def sources(self, edges: slice | Tensor) -> Tensor:
        """int32: the sources of these edges (int64 places, or a range of them), on the device of `indptr`."""
        if isinstance(edges, slice):
            found = self.indices[edges]
        else:
            found = self.indices.index_select(0, edges.to(self.indices.device))
        return found if found.device == self.indptr.device else moved([found], self.indptr.device)[0]

    @cached_property
    def beside_edges(self) -> Self:
        """The graph with its `indptr` where its edges are, for samplers."""
        if self.indptr.device == self.indices.device:
            return self
        return replace(self, indptr=self.indptr.to(self.indices.device))


def rows_of(bounds: Tensor, entries: int, first: int = 0) -> Tensor:
    """int64 [entries]: the number of the range, from `bounds[i]` up to `bounds[i + 1]`, that each of the entries is in.

    Ranges are numbered from `first` on.
    """
    numbers = torch.arange(first, first + bounds.numel() - 1, device=bounds.device)
    return numbers.repeat_interleave(bounds.diff(), output_size=entries)


def row_bounds(rows: Tensor, count: int) -> Tensor:
    """The offsets [count + 1] of each of `count` rows if these `rows` were sorted.

    Like a cumulative `bincount`, which would synchronize a GPU to find the largest row. Integer sums are the same in
    any order.
    """
    bounds = rows.new_zeros(count + 1)
    bounds[1:].index_add_(0, rows, torch.ones_like(rows))
    return bounds.cumsum_(0)


def transposed(columns: Tensor, offsets: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """The bags that have each of `rows` rows: int32 offsets [rows + 1] and bags [edges], from those of the bags.

    A row's bags ascend, so its gradients are added in the same order on every device.
    """
    counts = offsets.diff()
    bags = torch.arange(counts.numel(), dtype=columns.dtype, device=columns.device)
    by_edge = bags.repeat_interleave(counts, output_size=columns.numel())
    return row_bounds(columns, rows), by_edge[columns.argsort(stable=True)]


@dataclass(frozen=True)
class Block:
    """The sampled edges into `nodes`, by target: those into `nodes[i]` are `offsets[i]` up to `offsets[i + 1]`.

    `columns` are the rows of the source table that hold each neighbour's values. In the outermost block the source
    table is the graph's feature table and `columns` are the neighbours themselves, so nothing is gathered or
    renumbered. In the other blocks the first rows of the source table are those of `nodes`. `transpose` is `transposed`
    or a faster function for large graphs.
    """

    graph: Adjacency
    nodes: Tensor  # int64 [targets]
    offsets: Tensor  # int32 [targets + 1]
    neighbors: Tensor  # int32 [edges], node ids
    columns: Tensor  # int32 [edges], rows of the source table
    transpose: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]] = field(default=transposed, kw_only=True)

    @property
    def sampled(self) -> Tensor:
        """int32 [targets]: the number of edges into each target."""
        return self.offsets.diff()

    @property
    def edge_mask(self) -> Tensor | None:
        """bool [edges]: False marks padding; None: there is no padding."""
        return None

    @property
    def rows(self) -> Tensor:
        """`columns`, but a self loop refers to the target's own row."""
        return self.columns

    @property
    def is_loop(self) -> Tensor:
        """bool [edges]: whether the neighbour is the target itself."""
        counts = self.offsets.diff()
        return self.neighbors == self.nodes.repeat_interleave(counts, output_size=self.neighbors.numel())

    def of(self, graph: Adjacency) -> Block:
        """The block, sampled from `graph.beside_edges`, on the device of the graph's `indptr`."""
        device = graph.indptr.device
        if self.nodes.device == device:
            return self
        nodes, offsets, neighbors = moved((self.nodes, self.offsets, self.neighbors), device)
        columns = neighbors if self.columns is self.neighbors else moved([self.columns], device)[0]
        return Block(graph, nodes, offsets, neighbors, columns)

    def padded(self) -> Block:
        """The block padded to a `rounded` number of targets; the extra ones have no edges, their outputs are unused."""
        missing = rounded(self.nodes.numel()) - self.nodes.numel()
        nodes = torch.cat([self.nodes, self.nodes[:1].expand(missing)])
        return replace(self, nodes=nodes, offsets=torch.cat([self.offsets, self.offsets[-1:].expand(missing)]))

    def mean(self, table: Tensor) -> Tensor:
        """The mean of the neighbours' rows, zero for isolated nodes. Allocates no tensor of edges x channels."""
        sums = Sums(self.columns, self.offsets, self.transpose).of(table)
        return sums.div_(self.offsets.diff().clamp_(min=1)[:, None])

    def weighted_sum(self, table: Tensor, weights: Tensor) -> Tensor:
        """The sum of the neighbours' rows, each multiplied by its edge's weight."""
        return F.embedding_bag(
            self.columns, table, self.offsets, mode="sum", per_sample_weights=weights, include_last_offset=True
        )


@dataclass(frozen=True)
class Neighborhoods:
    """Edges by target: those into target `i` come from the rows `columns[offsets[i]:offsets[i + 1]]` of a table.

    The targets themselves are the rows `own` of that table.
    """

    columns: Tensor  # int32 [edges]
    offsets: Tensor  # int32 [targets + 1]
    own: Tensor  # int64 [targets]
    edge_mask: Tensor | None = None  # bool [edges]: False marks padding; None: there is no padding

    def targets(self) -> Tensor:
        """int64 [edges]: the target of each edge."""
        return rows_of(self.offsets, self.columns.numel())

    def with_self_loops(self) -> Neighborhoods:
        """A copy in which each target has exactly one edge to itself, after its other edges."""
        targets = self.targets()
        is_kept = self.columns != self.own.index_select(0, targets)
        if self.edge_mask is not None:
            return self._with_loops_behind(targets, is_kept & self.edge_mask)
        before = torch.zeros(targets.numel() + 1, dtype=torch.int64, device=targets.device)
        torch.cumsum(is_kept, 0, out=before[1:])  # kept edges before each edge
        offsets = before.index_select(0, self.offsets.to(torch.int64))
        offsets += torch.arange(offsets.numel(), device=offsets.device)
        columns = self.columns.new_empty(int(offsets[-1]))
        columns[(before[:-1] + targets)[is_kept]] = self.columns[is_kept]
        columns[offsets[1:] - 1] = self.own.to(torch.int32)
        return Neighborhoods(columns, offsets.to(torch.int32), self.own)

    def _with_loops_behind(self, targets: Tensor, is_kept: Tensor) -> Neighborhoods:
        """Keep all edges and mark those to drop as padding, so that no size depends on a value."""
        edges, loops = self.columns.numel(), self.own.numel()
        ends = self.offsets + torch.arange(loops + 1, dtype=torch.int32, device=targets.device)
        columns, edge_mask = self.columns.new_empty(edges + loops), is_kept.new_ones(edges + loops)
        places = torch.arange(edges, device=targets.device) + targets
        columns[places], edge_mask[places] = self.columns, is_kept
        columns[ends[1:].to(torch.int64) - 1] = self.own.to(torch.int32)
        return Neighborhoods(columns, ends, self.own, edge_mask)


def edge_ranges(bounds: Tensor, most_edges: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of targets with at most `most_edges` edges in total, or of a single target."""
    start, targets = 0, bounds.numel() - 1
    while start < targets:
        limit = bounds[start] + most_edges
        stop = max(start + 1, int(torch.searchsorted(bounds, limit, right=True)) - 1)
        yield start, stop
        start = stop


class Sums:
    """Sums of rows along edges by target; allocates no tensor of edges x channels.

    Two calls of torch's `embedding_bag` in sum mode: forward along the edges, backward along them transposed. The mean
    mode and its gradient first materialize the bag of every edge and then scatter-add, which costs four times as much
    on a CPU (torch 2.13).
    """

    def __init__(
        self,
        columns: Tensor,
        offsets: Tensor,
        transpose: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]] = transposed,
    ) -> None:
        """Edges into target `i` come from the rows `columns[offsets[i]:offsets[i + 1]]`; int32."""
        self.columns, self.offsets, self._transpose = columns, offsets, transpose
        self._by_row: tuple[int, tuple[Tensor, Tensor]] | None = None

    def of(self, table: Tensor) -> Tensor:
        """The sums [targets, channels] of the table's rows [rows, channels]."""
        return _Sum.apply(table, self)  # type: ignore[no-any-return, no-untyped-call]

    def by_row(self, rows: int) -> tuple[Tensor, Tensor]:
        """`transposed` for a table of `rows` rows; several layers on the same edges share it."""
        if self._by_row is None or self._by_row[0] != rows:
            self._by_row = rows, self._transpose(self.columns, self.offsets, rows)
        return self._by_row[1]


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, edges: Sums) -> Tensor:
        ctx.rows, ctx.edges = table.size(0), edges
        return F.embedding_bag(edges.columns, table, edges.offsets, mode="sum", include_last_offset=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        bounds, by_row = ctx.edges.by_row(ctx.rows)
        return F.embedding_bag(by_row, gradients[0].contiguous(), bounds, mode="sum", include_last_offset=True), None


# How work on a whole graph is divided: a slice of the nodes for each rank, in pieces that bound what it holds.


def own_slice(nodes: int) -> range:
    """This rank's part of `nodes` nodes: equal slices in rank order, the last ones shorter."""
    size = -(-nodes // dist.get_world_size())
    return range(nodes)[dist.get_rank() * size : (dist.get_rank() + 1) * size]


def slices(count: int, at_once: int) -> list[slice]:
    """Consecutive slices of `at_once` nodes; at least one, possibly empty."""
    return [slice(start, min(count, start + at_once)) for start in range(0, max(1, count), at_once)]


# Copies from the host to a GPU.


def moved(tensors: Iterable[Tensor], device: torch.device) -> list[Tensor]:
    """These tensors on `device`. A GPU copies them from pinned memory after its queued work; the host does not wait."""

    def pinned(tensor: Tensor) -> Tensor:  # what is on a GPU cannot be pinned, and need not be
        return tensor if tensor.device.type != "cpu" or tensor.is_pinned() else tensor.pin_memory()

    if device.type == "cpu":
        return list(tensors)
    return [pinned(tensor).to(device, non_blocking=True) for tensor in tensors]
