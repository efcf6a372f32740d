"""Attention over neighbours, in plain torch on any device; on a CPU large hops go to `compiled_attention`.

Brody, Alon and Yahav, "How attentive are graph attention networks?" (2022), known as GATv2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clusterctl.graph.blocks import row_bounds
from clusterctl.graph.hashing import keyed_dropout
from clusterctl.graph.products import Linear

SLOPE = 0.2  # of the leaky ReLU below zero
WORTH_COMPILING = 1 << 22  # edges x heads x channels: importing numba takes a second


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
        numbers = torch.arange(self.own.numel(), device=self.own.device)
        return numbers.repeat_interleave(self.offsets.diff(), output_size=self.columns.numel())

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


class GatConv(nn.Module):
    """GATv2: the neighbours' projected rows `W_left h_u`, weighted by a softmax over the neighbours of each target.

    The softmax is over `a . leaky_relu(W_left h_u + W_right h_v)`, for each head. Equivalent to PyG's GATv2Conv with
    bipartite input; the caller adds self loops. Heads are concatenated, or averaged (`mean`).
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        *,
        mean: bool = False,
        residual: bool = False,
    ) -> None:
        super().__init__()
        width = out_channels if mean else heads * out_channels
        of_source, of_target = (in_channels, in_channels) if isinstance(in_channels, int) else in_channels
        self.left = Linear(of_source, heads * out_channels)
        self.right = Linear(of_target, heads * out_channels)
        self.attention = nn.Parameter(torch.empty(heads, out_channels))
        self.bias = nn.Parameter(torch.zeros(width))
        self.residual = Linear(of_target, width, bias=False) if residual else None
        self._mean = mean
        for weight in (self.left.weight, self.right.weight, self.attention):
            nn.init.xavier_uniform_(weight)
        for bias in (self.left.bias, self.right.bias):
            nn.init.zeros_(bias)

    def send(self, rows: Tensor) -> Tensor:
        """The messages [rows, heads * out] of these rows [rows, in] to their neighbours."""
        return self.left(rows)  # type: ignore[no-any-return]

    def receive(self, edges: Neighborhoods, sent: Tensor, rows: Tensor, factors: Tensor | None = None) -> Tensor:
        """The targets' new rows, from the output of `send` and the targets' own `rows` [targets, in].

        The softmax is multiplied by `factors` [edges, heads], for dropout.
        """
        out = attend(sent, self.right(rows), self.attention, edges, factors)
        if self._mean:
            out = by_head(out, self.attention).mean(1)
        if self.residual is not None:
            out = out + self.residual(rows)
        return out + self.bias


def dropped(sources: Tensor, targets: Tensor, attention: Tensor, share: float, key: int) -> Tensor:
    """The dropout factors [edges, heads] of edges between these nodes (int64), keyed by both ends."""
    ends = (targets << 32) + sources  # ids are below 2**31
    ones = torch.ones(ends.numel(), len(attention), dtype=attention.dtype, device=ends.device)
    return keyed_dropout(ones, ends, share, key)


def attend(left: Tensor, right: Tensor, attention: Tensor, edges: Neighborhoods, factors: Tensor | None) -> Tensor:
    """The attention-weighted sums of the neighbours' rows [targets, heads * channels], zero for isolated targets.

    `left` [rows, heads * channels] holds the projected rows of sources, `right` [targets, heads * channels] those of
    targets; `attention` is [heads, channels]. Sums are in float32 or float64; the result has the dtype of `left`.
    """
    if _worth_compiling(left, edges):
        from clusterctl.graph.compiled_attention import attend_compiled

        return attend_compiled(left, right, attention, edges, factors)
    return attend_plain(left, right, attention, edges, factors)


def attend_plain(
    left: Tensor, right: Tensor, attention: Tensor, edges: Neighborhoods, factors: Tensor | None
) -> Tensor:
    """Like `attend`, in plain torch operations, with several tensors of edges x heads x channels."""
    targets, counts = edges.targets(), edges.offsets.diff().to(torch.int64)
    exact = attention.dtype
    sources = by_head(_select_rows(left.to(exact), edges.columns), attention)
    summed = sources + by_head(_select_rows(right.to(exact), targets), attention)
    logits = (F.leaky_relu(summed, SLOPE) * attention).sum(-1)
    if edges.edge_mask is not None:
        logits = logits.masked_fill(~edges.edge_mask[:, None], -torch.inf)
    highest = torch.segment_reduce(logits.detach(), "max", lengths=counts, unsafe=True)
    highest = highest.clamp(min=torch.finfo(exact).min)  # for targets that have only padding
    weights = (logits - highest.index_select(0, targets)).exp()
    totals = torch.segment_reduce(weights, "sum", lengths=counts, unsafe=True)
    weights = weights / _select_rows(totals.clamp(min=1), targets)  # at least 1 for a target with edges
    if factors is not None:
        weights = weights * factors
    messages = (sources * weights[..., None]).flatten(1)
    return torch.segment_reduce(messages, "sum", lengths=counts, unsafe=True).to(left.dtype)


def by_head(table: Tensor, attention: Tensor) -> Tensor:
    """The table [rows, heads * channels] as [rows, heads, channels]."""
    return table.view(len(table), *attention.shape)


def _select_rows(table: Tensor, rows: Tensor) -> Tensor:
    return _SelectRows.apply(table, rows)  # type: ignore[no-any-return, no-untyped-call]


class _SelectRows(torch.autograd.Function):
    """`table.index_select(0, rows)` with a segment sum as its gradient; torch's own adds in random order on a GPU."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor) -> Tensor:
        ctx.size = table.size(0)
        ctx.save_for_backward(rows)
        return table.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        order, bounds = rows.argsort(stable=True), row_bounds(rows, ctx.size).to(torch.int64)
        return F.embedding_bag(order, gradients[0], bounds, mode="sum", include_last_offset=True), None


def _worth_compiling(left: Tensor, edges: Neighborhoods) -> bool:
    """Whether numba pays off and is installed. The compiled loops do not support padding."""
    work = edges.columns.numel() * left.size(1)
    plain = left.device.type != "cpu" or edges.edge_mask is not None
    return not plain and work >= WORTH_COMPILING and _has_numba()


@cache
def _has_numba() -> bool:
    return find_spec("numba") is not None
