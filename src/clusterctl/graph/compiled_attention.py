"""Attention over neighbours in loops that numba compiles, forward and backward: no tensor of edges x channels.

The forward saves the softmax [edges, heads]; the backward recomputes the rest from the projected rows. Threads split
the targets in the forward and the heads in the backward, so only one thread writes each number and the result does not
depend on the number of threads.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import torch
from torch import Tensor

from clusterctl.graph.attention import SLOPE, by_head

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.graph.attention import Neighborhoods

_PIECES = 4  # per thread: degrees are uneven
# Allows vectorized sums of products. NaN and infinity keep their meaning.
_FAST = {"reassoc", "contract", "nsz"}


def attend_compiled(
    left: Tensor, right: Tensor, attention: Tensor, edges: Neighborhoods, factors: Tensor | None
) -> Tensor:
    """Like `attention.attend`."""
    return _Attend.apply(left, right, attention, edges.columns, edges.offsets, factors)  # type: ignore[no-any-return, no-untyped-call]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, left: Tensor, right: Tensor, attention: Tensor, columns: Tensor, offsets: Tensor, factors: Any
    ) -> Tensor:
        exact = attention.dtype
        rows, own = (by_head(table.detach().to(exact).contiguous(), attention) for table in (left, right))
        factors = attention.new_empty(0, 0) if factors is None else factors.to(exact)
        weights = rows.new_empty(columns.numel(), len(attention))
        out = torch.zeros_like(own)
        arrays = [tensor.numpy() for tensor in (rows, own, attention.detach(), columns, offsets, factors, weights, out)]
        _in_threads(lambda first, last: _forward(*arrays, SLOPE, first, last), len(own), _PIECES)
        ctx.save_for_backward(left, right, attention, columns, offsets, factors, weights)
        return out.flatten(1).to(left.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        left, right, attention, columns, offsets, factors, weights = ctx.saved_tensors
        exact = attention.dtype
        tables = left, right, gradients[0]
        rows, own, gradient = (by_head(table.detach().to(exact).contiguous(), attention) for table in tables)
        rows_gradient, own_gradient = torch.zeros_like(rows), torch.zeros_like(own)
        attention_gradient = torch.zeros_like(attention, dtype=torch.float64)
        tensors = (rows, own, attention.detach(), columns, offsets, factors, weights, gradient)
        arrays = [tensor.numpy() for tensor in (*tensors, rows_gradient, own_gradient, attention_gradient)]
        _in_threads(lambda first, last: _backward(*arrays, SLOPE, first, last), len(attention), 1)
        return (
            rows_gradient.flatten(1).to(left.dtype),
            own_gradient.flatten(1).to(right.dtype),
            attention_gradient.to(exact),
            *[None] * 3,
        )


def _in_threads(work: Callable[[int, int], None], count: int, pieces: int) -> None:
    """Call `work` for slices of `range(count)`, `pieces` for each of torch's threads."""
    threads = torch.get_num_threads()
    size = max(1, -(-count // (threads * pieces)))
    slices = [(first, min(first + size, count)) for first in range(0, count, size)]
    if threads == 1 or len(slices) == 1:
        for first, last in slices:
            work(first, last)
    else:
        list(_threads(threads).map(lambda bounds: work(*bounds), slices))


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "attention")


def _compiled(loop: Any) -> Any:
    return numba.njit(nogil=True, cache=True, fastmath=_FAST)(loop)


@_compiled
def _forward(
    rows: Any,
    own: Any,
    attention: Any,
    columns: Any,
    offsets: Any,
    factors: Any,
    weights: Any,
    out: Any,
    slope: Any,
    first: Any,
    last: Any,
) -> None:
    heads, channels = attention.shape
    slope = attention.dtype.type(slope)
    for target in range(first, last):
        begin, end = offsets[target], offsets[target + 1]
        for edge in range(begin, end):
            row = columns[edge]
            for head in range(heads):
                logit = attention.dtype.type(0)
                for channel in range(channels):
                    value = rows[row, head, channel] + own[target, head, channel]
                    logit += attention[head, channel] * max(value, slope * value)
                weights[edge, head] = logit
        for head in range(heads):
            highest = attention.dtype.type(-np.inf)
            for edge in range(begin, end):
                highest = max(highest, weights[edge, head])
            total = attention.dtype.type(0)
            for edge in range(begin, end):
                weights[edge, head] = np.exp(weights[edge, head] - highest)
                total += weights[edge, head]
            for edge in range(begin, end):
                weights[edge, head] /= total
        for edge in range(begin, end):
            row = columns[edge]
            for head in range(heads):
                weight = weights[edge, head]
                if factors.size:
                    weight *= factors[edge, head]
                for channel in range(channels):
                    out[target, head, channel] += weight * rows[row, head, channel]


@_compiled
def _backward(
    rows: Any,
    own: Any,
    attention: Any,
    columns: Any,
    offsets: Any,
    factors: Any,
    weights: Any,
    gradient: Any,
    rows_gradient: Any,
    own_gradient: Any,
    attention_gradient: Any,
    slope: Any,
    first: Any,
    last: Any,
) -> None:
    channels = attention.shape[1]
    slope = attention.dtype.type(slope)
    longest = 0
    for target in range(offsets.size - 1):
        longest = max(longest, offsets[target + 1] - offsets[target])
    weights_gradient = np.empty((longest, last - first), dtype=attention.dtype)
    means = np.empty(last - first, dtype=attention.dtype)
    sums = np.empty((last - first, channels), dtype=attention.dtype)
    for target in range(offsets.size - 1):
        begin, end = offsets[target], offsets[target + 1]
        means[:] = 0
        sums[:] = 0
        for edge in range(begin, end):
            row = columns[edge]
            for head in range(first, last):
                product = attention.dtype.type(0)
                for channel in range(channels):
                    product += gradient[target, head, channel] * rows[row, head, channel]
                if factors.size:
                    product *= factors[edge, head]
                weights_gradient[edge - begin, head - first] = product
                means[head - first] += weights[edge, head] * product
        for edge in range(begin, end):
            row = columns[edge]
            for head in range(first, last):
                weight = weights[edge, head]
                logit_gradient = weight * (weights_gradient[edge - begin, head - first] - means[head - first])
                if factors.size:
                    weight *= factors[edge, head]
                for channel in range(channels):
                    value = rows[row, head, channel] + own[target, head, channel]
                    factor = attention.dtype.type(1) if value > 0 else slope
                    sums[head - first, channel] += logit_gradient * factor * value
                    passed = logit_gradient * factor * attention[head, channel]
                    own_gradient[target, head, channel] += passed
                    rows_gradient[row, head, channel] += passed + weight * gradient[target, head, channel]
        for head in range(first, last):
            for channel in range(channels):
                attention_gradient[head, channel] += sums[head - first, channel]
