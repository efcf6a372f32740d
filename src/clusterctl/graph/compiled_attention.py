"""Attention over neighbours in loops that numba compiles, forward and backward: no tensor of edges x channels.

The forward keeps the softmax [edges, heads]; the backward computes the rest again from the projected rows. Threads
share out the targets, or the heads where sums run over targets, so each number is written by one thread, and the result
does not depend on how many there are.
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

_PIECES = 4  # of the targets for each thread: degrees are uneven
# What lets a sum of products use vectors. NaN and infinity still mean what they do.
_FAST = {"reassoc", "contract", "nsz"}


def attend_compiled(
    left: Tensor, right: Tensor, attention: Tensor, edges: Neighborhoods, factors: Tensor | None
) -> Tensor:
    """As `attention.attend`."""
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
        of_rows, of_own = torch.zeros_like(rows), torch.zeros_like(own)
        of_attention = torch.zeros_like(attention, dtype=torch.float64)
        of_logits = torch.empty_like(weights)
        edges = [tensor.numpy() for tensor in (columns, offsets, factors, weights)]
        inputs = [tensor.numpy() for tensor in (rows, own, attention.detach())]
        passed, logits = gradient.numpy(), of_logits.numpy()
        _in_threads(lambda *part: _of_logits(*edges, inputs[0], passed, logits, *part), len(own), _PIECES)
        sums = of_own.numpy(), of_attention.numpy()
        _in_threads(lambda *part: _of_targets(*edges[:2], *inputs, logits, *sums, SLOPE, *part), len(attention), 1)
        rest = logits, passed, of_rows.numpy()
        _in_threads(lambda *part: _of_sources(*edges, *inputs, *rest, SLOPE, *part), len(attention), 1)
        return of_rows.flatten(1).to(left.dtype), of_own.flatten(1).to(right.dtype), of_attention.to(exact), *[None] * 3


def _in_threads(work: Callable[..., None], count: int, pieces: int) -> None:
    """Call `work` for slices of `range(count)`, so many for each of torch's threads."""
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


# The backward is three loops that each write little: LLVM vectorizes a loop only if few pairs of arrays might overlap.


@_compiled
def _of_logits(
    columns: Any,
    offsets: Any,
    factors: Any,
    weights: Any,
    rows: Any,
    gradient: Any,
    of_logits: Any,
    first: Any,
    last: Any,
) -> None:
    heads, channels = gradient.shape[1:]
    means = np.empty(heads, dtype=gradient.dtype)
    for target in range(first, last):
        begin, end = offsets[target], offsets[target + 1]
        means[:] = 0
        for edge in range(begin, end):
            row = columns[edge]
            for head in range(heads):
                product = gradient.dtype.type(0)
                for channel in range(channels):
                    product += gradient[target, head, channel] * rows[row, head, channel]
                if factors.size:
                    product *= factors[edge, head]
                of_logits[edge, head] = product
                means[head] += weights[edge, head] * product
        for edge in range(begin, end):
            for head in range(heads):
                of_logits[edge, head] = weights[edge, head] * (of_logits[edge, head] - means[head])


@_compiled
def _of_targets(
    columns: Any,
    offsets: Any,
    rows: Any,
    own: Any,
    attention: Any,
    of_logits: Any,
    of_own: Any,
    of_attention: Any,
    slope: Any,
    first: Any,
    last: Any,
) -> None:
    channels = attention.shape[1]
    slope = attention.dtype.type(slope)
    passed = np.empty((last - first, channels), dtype=attention.dtype)
    sums = np.empty((last - first, channels), dtype=attention.dtype)
    for target in range(offsets.size - 1):
        passed[:] = 0
        sums[:] = 0
        for edge in range(offsets[target], offsets[target + 1]):
            row = columns[edge]
            for head in range(last - first):
                of_logit = of_logits[edge, first + head]
                for channel in range(channels):
                    value = rows[row, first + head, channel] + own[target, first + head, channel]
                    part = of_logit if value > 0 else of_logit * slope
                    passed[head, channel] += part
                    sums[head, channel] += part * value
        for head in range(last - first):
            for channel in range(channels):
                of_own[target, first + head, channel] = passed[head, channel] * attention[first + head, channel]
            for channel in range(channels):
                of_attention[first + head, channel] += sums[head, channel]


@_compiled
def _of_sources(
    columns: Any,
    offsets: Any,
    factors: Any,
    weights: Any,
    rows: Any,
    own: Any,
    attention: Any,
    of_logits: Any,
    gradient: Any,
    of_rows: Any,
    slope: Any,
    first: Any,
    last: Any,
) -> None:
    channels = attention.shape[1]
    slope = attention.dtype.type(slope)
    for target in range(offsets.size - 1):
        for edge in range(offsets[target], offsets[target + 1]):
            row = columns[edge]
            for head in range(first, last):
                of_logit, weight = of_logits[edge, head], weights[edge, head]
                if factors.size:
                    weight *= factors[edge, head]
                for channel in range(channels):
                    value = rows[row, head, channel] + own[target, head, channel]
                    part = of_logit if value > 0 else of_logit * slope
                    of_rows[row, head, channel] += (
                        part * attention[head, channel] + weight * gradient[target, head, channel]
                    )
