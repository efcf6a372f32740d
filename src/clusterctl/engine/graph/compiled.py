"""Loops compiled by numba, for large graphs on a CPU: samplers, dropout, attention, and reads of rows from a file.

All give the results of the plain ones, and all but attention bit for bit. The samplers' are serial, and without
the GIL: sampling overlaps with the previous step (see `loop.prefetched`), and several ranks share a node's cores
anyway. In Python, the threads that read a `RowFile` wait for each other's GIL after each request; here they hold it
only to start. Compiled code is cached in NUMBA_CACHE_DIR.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import extending, types
from torch import Tensor

from clusterctl.engine.graph.hashing import FIRST, GOLDEN, SECOND
from clusterctl.engine.graph.neighbors import WINDOW, gaps, remaining, sizes, turn_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from clusterctl.engine.graph.blocks import Adjacency, Neighborhoods


_U = np.uint64
GOLDEN_BITS, _FIRST, _SECOND = (_U(number % (1 << 64)) for number in (GOLDEN, FIRST, SECOND))
_S27, _S30, _S31, _S32, _S33 = (
    _U(shift) for shift in (27, 30, 31, 32, 33)
)  # numba promotes int64 and uint64 to float64
_LAST = np.int64((1 << 63) - 1)


def sample_neighbors_compiled(
    graph: Adjacency,
    nodes: Tensor,
    count: int,
    key: int,
    excluded: Tensor | None = None,
    *,
    replace: bool = False,
    places: bool = False,
) -> tuple[Tensor, Tensor]:
    """Like `neighbors.sample_neighbors`."""
    start, degree = remaining(graph, nodes, excluded)
    taken = sizes(degree, count, replace)
    offsets = torch.zeros(nodes.numel() + 1, dtype=torch.int32)
    torch.cumsum(taken, 0, out=offsets[1:])
    neighbors = torch.empty(int(offsets[-1]), dtype=torch.int64 if places else torch.int32)
    absent = nodes.new_empty(0) if excluded is None else gaps(excluded)
    _fill(
        *_arrays(graph.indices, nodes, absent),
        ranges=_arrays(start, degree),
        out=_arrays(offsets, neighbors),
        picks=np.empty(max(count, 0), dtype=np.int64),
        key=_U(key % (1 << 64)),
        replace=replace and count >= 0,
        as_places=places,
    )
    return offsets, neighbors


def sample_labor_compiled(
    graph: Adjacency, nodes: Tensor, count: int, key: int, duplicates: int, *, places: bool = False
) -> tuple[Tensor, Tensor]:
    """Like `neighbors.sample_labor`."""
    start, degree = remaining(graph, nodes, None)
    offsets = torch.zeros(nodes.numel() + 1, dtype=torch.int32)
    torch.cumsum(sizes(degree, count, replace=False), 0, out=offsets[1:])
    neighbors = torch.empty(int(offsets[-1]), dtype=torch.int64 if places else torch.int32)
    window = max(count, 0) * WINDOW
    _fill_labor(
        *_arrays(graph.indices),
        ranges=_arrays(start, degree),
        out=_arrays(offsets, neighbors),
        window=window,
        scratch=np.empty((2, window + 1), dtype=np.int64),
        key=_U(key % (1 << 64)),
        turn=turn_of(key),
        has_duplicates=duplicates > 1,
        as_places=places,
    )
    return offsets, neighbors


def _arrays(*tensors: Tensor) -> tuple[Any, ...]:
    return tuple(tensor.numpy() for tensor in tensors)


def _bits(tensor: Tensor) -> NDArray[Any]:
    """The tensor as unsigned integers: numpy has no bfloat16."""
    return tensor.view(torch.uint8).numpy().view(_BITS[tensor.element_size()])


def transposed_compiled(columns: Tensor, offsets: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Like `blocks.transposed`, by counting instead of sorting."""
    bounds, by_row = torch.zeros(rows + 1, dtype=torch.int32), torch.empty_like(columns)
    _transpose(*_arrays(columns, offsets, bounds, by_row))
    return bounds, by_row


class Renumbering:
    """`neighbors.renumbered` for a graph of `num_nodes` nodes; not thread-safe."""

    def __init__(self, num_nodes: int) -> None:
        self._row = np.full(num_nodes, -1, dtype=np.int32)  # per node, while a block is renumbered

    def __call__(self, nodes: Tensor, neighbors: Tensor) -> tuple[Tensor, Tensor]:
        """The source nodes of a block, `nodes` first and then the new ones, and the neighbours' rows among them."""
        new = _find_new(self._row, nodes.numpy(), neighbors.numpy())
        new.sort()  # numpy's is many times faster than numba's
        sources, columns = _renumber(self._row, nodes.numpy(), new, neighbors.numpy())
        return torch.from_numpy(sources), torch.from_numpy(columns)


def compiled(loop: Any) -> Any:
    """The loop, compiled on its first call; it releases the GIL."""
    return numba.njit(nogil=True, cache=True)(loop)


def compiled_sums(loop: Any) -> Any:
    """Like `compiled`, and may reorder sums of floats, to vectorize them. NaN and infinity keep their meaning."""
    return numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "nsz"})(loop)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def mix(value: Any) -> Any:
    """SplitMix64 of a uint64, like `hashing.draws`."""
    value = value + GOLDEN_BITS
    value = (value ^ (value >> _S30)) * _FIRST
    value = (value ^ (value >> _S27)) * _SECOND
    return value ^ (value >> _S31)


@compiled
def _fill(
    indices: Any, nodes: Any, gaps: Any, ranges: Any, out: Any, picks: Any, key: Any, replace: bool, as_places: bool
) -> None:
    (starts, degrees), (offsets, neighbors) = ranges, out
    for target in range(nodes.size):
        start, degree = starts[target], degrees[target]
        first, count = offsets[target], offsets[target + 1] - offsets[target]
        if count == degree and not replace:
            for place in range(count):
                edge = start + place
                if gaps.size:
                    edge += np.searchsorted(gaps, edge, side="right")
                neighbors[first + place] = edge if as_places else indices[edge]
            continue
        own_key = mix(_U(nodes[target]) * GOLDEN_BITS + key)
        for j in range(count):
            highest = degree - 1 if replace else degree - count + j
            bits = mix((own_key + _U(j)) * GOLDEN_BITS)
            pick = np.int64(((bits >> _S32) * _U(highest + 1)) >> _S32)
            for earlier in range(0 if replace else j):
                if picks[earlier] == pick:
                    pick = highest
                    break
            picks[j] = pick
        for j in range(count):
            edge = start + picks[j]
            if gaps.size:
                edge += np.searchsorted(gaps, edge, side="right")
            neighbors[first + j] = edge if as_places else indices[edge]


@compiled
def _fill_labor(
    indices: Any,
    ranges: Any,
    out: Any,
    window: Any,
    scratch: Any,
    key: Any,
    turn: Any,
    has_duplicates: bool,
    as_places: bool,
) -> None:
    (starts, degrees), (offsets, neighbors), (ranks, kept) = ranges, out, scratch
    for target in range(starts.size):
        start, degree, begin = starts[target], degrees[target], offsets[target]
        count = offsets[target + 1] - begin
        if count == degree:
            for place in range(count):
                neighbors[begin + place] = start + place if as_places else indices[start + place]
            continue
        if count == 0:
            continue
        size = min(degree, window)
        first = (degree * turn) >> 32 if degree > window else 0
        head = min(size, degree - first)  # the rest wraps around to the beginning of the list
        for place in range(head):
            ranks[place] = _rank(indices[start + first + place], key, place)
        for place in range(head, size):
            ranks[place] = _rank(indices[start + place - head], key, place)
        repeated = 0
        if has_duplicates:
            for edge in range(start + first, start + first + head):
                repeated += indices[edge] == indices[edge - 1]  # or like the end of the previous list: harmless
            for edge in range(start, start + size - head):
                repeated += indices[edge] == indices[edge - 1]
        if repeated:
            for place in range(size):
                position = (first + place) % degree
                copy = 0
                while copy < position and indices[start + position - copy - 1] == indices[start + position]:
                    copy += 1
                if copy:
                    ranks[place] = _rank(indices[start + position] + (np.int64(copy) << 32), key, place)
        share = (count + 3.0 * np.sqrt(count) + 1.0) / size  # of the window; nearly always large enough
        while True:
            bound = np.int64(share * 2147483648.0) << 32 if share < 1.0 else _LAST
            found = 0
            for place in range(size):
                kept[found] = ranks[place]
                found += ranks[place] < bound
            if found >= count:
                break
            share *= 2.0
        for place in range(1, found):
            rank, earlier = kept[place], place - 1
            while earlier >= 0 and kept[earlier] > rank:
                kept[earlier + 1] = kept[earlier]
                earlier -= 1
            kept[earlier + 1] = rank
        for place in range(count):
            position = first + (kept[place] & 0xFFFFFFFF)
            edge = start + (position if position < degree else position - degree)
            neighbors[begin + place] = edge if as_places else indices[edge]


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _rank(counter: Any, key: Any, place: Any) -> Any:
    return (np.int64(mix(_U(counter) * GOLDEN_BITS + key) >> _S33) << 32) | place


@compiled
def _find_new(row: Any, nodes: Any, neighbors: Any) -> Any:
    targets = nodes.size
    for place in range(targets - 1, -1, -1):  # backwards, so that a node's first place wins
        row[nodes[place]] = place
    new = np.empty(neighbors.size, dtype=np.int64)
    count = 0
    for neighbor in neighbors:
        if row[neighbor] < 0:
            row[neighbor] = targets
            new[count] = neighbor
            count += 1
    return new[:count]


@compiled
def _renumber(row: Any, nodes: Any, new: Any, neighbors: Any) -> Any:
    sources = np.concatenate((nodes, new))
    for place in range(nodes.size, sources.size):
        row[sources[place]] = place
    columns = np.empty(neighbors.size, dtype=np.int32)
    for edge in range(neighbors.size):
        columns[edge] = row[neighbors[edge]]
    for node in sources:
        row[node] = -1
    return sources, columns


@compiled
def _transpose(columns: Any, offsets: Any, bounds: Any, by_row: Any) -> None:
    for column in columns:
        bounds[column + 1] += 1
    for row in range(1, bounds.size):
        bounds[row] += bounds[row - 1]
    free = bounds.copy()
    for bag in range(offsets.size - 1):
        for edge in range(offsets[bag], offsets[bag + 1]):
            row = columns[edge]
            by_row[free[row]] = bag
            free[row] += 1


def dropout_factors(keys: Tensor, values: Tensor, lowest: int, scale: float) -> Tensor:
    """The factors of `masks.keyed_dropout` for `values` [rows, channels], from the int64 keys of their rows.

    `scale` where the 16 bits of a value, signed, are at least `lowest`, else 0.
    """
    factors = torch.empty(values.shape, dtype=values.dtype)
    kept = torch.ones(1, dtype=values.dtype).mul_(scale)
    out, (one,) = _bits(factors), _bits(kept)
    rows = keys.numpy().view(np.uint64)
    _in_threads(lambda first, last: _drop(rows, out, lowest, one, first, last), len(rows), 1)
    return factors


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def draw_words(key: Any, words: Any) -> None:
    """Fill `words` with the random bits of a row of `hashing.grid`, whose key is a uint64."""
    for word in range(words.size):
        words[word] = mix((key + _U(word)) * GOLDEN_BITS)


@compiled
def _drop(keys: Any, factors: Any, lowest: Any, kept: Any, first: Any, last: Any) -> None:
    channels, dropped = factors.shape[1], factors.dtype.type(0)  # a plain 0 would make both of them floats
    drawn = np.empty((channels + 3) // 4, dtype=np.uint64)
    lanes = drawn.view(np.int16)
    for row in range(first, last):
        draw_words(keys[row], drawn)
        for channel in range(channels):
            factors[row, channel] = kept if lanes[channel] >= lowest else dropped


# Attention over neighbours, forward and backward, without a tensor of edges x channels. The forward saves the softmax
# [edges, heads]; the backward recomputes the rest. Threads split the targets in the forward and the heads in the
# backward, so only one thread writes each number and the result does not depend on the number of threads.


_LINE = 64  # bytes of a cache line
_AHEAD = 2  # edges: rows are spread over memory, and loading one takes longer than computing with it
_PIECES = 4  # per thread: degrees are uneven


def attend_compiled(
    left: Tensor, right: Tensor, attention: Tensor, edges: Neighborhoods, factors: Tensor | None, slope: float
) -> Tensor:
    """Like `attention.attend`; `slope` is that of the leaky ReLU below zero."""
    return _Attend.apply(left, right, attention, edges.columns, edges.offsets, factors, slope)  # type: ignore[no-any-return, no-untyped-call]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        left, right, attention, columns, offsets, factors, ctx.slope = given
        rows, own = (_by_head(table, attention) for table in (left, right))
        factors = attention.new_empty(0, 0) if factors is None else factors.to(attention.dtype)
        weights = attention.new_empty(columns.numel(), len(attention))
        out: Tensor = attention.new_empty(own.shape)
        tables, edges = _arrays(rows, own, attention.detach()), _arrays(columns, offsets, factors)
        written = _arrays(weights, out)
        _in_threads(lambda first, last: _forward(tables, edges, *written, ctx.slope, first, last), len(own), _PIECES)
        ctx.save_for_backward(left, right, attention, columns, offsets, factors, weights, out)
        return out.flatten(1).to(left.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        left, right, attention, columns, offsets, factors, weights, out = ctx.saved_tensors
        rows, own, gradient = (_by_head(table, attention) for table in (left, right, gradients[0]))
        rows_gradient, own_gradient = attention.new_zeros(rows.shape), attention.new_empty(own.shape)
        attention_gradient = torch.zeros_like(attention, dtype=torch.float64)
        tables, edges = _arrays(rows, own, attention.detach()), _arrays(columns, offsets, factors)
        read, written = _arrays(weights, out, gradient), _arrays(rows_gradient, own_gradient, attention_gradient)
        _in_threads(
            lambda first, last: _backward(tables, edges, read, written, ctx.slope, first, last), len(attention), 1
        )
        return (
            rows_gradient.flatten(1).to(left.dtype),
            own_gradient.flatten(1).to(right.dtype),
            attention_gradient.to(attention.dtype),
            *[None] * 4,
        )


def _by_head(table: Tensor, attention: Tensor) -> Tensor:
    """The table as the loops read it: [rows, heads, channels], and the bits of bfloat16, which numpy does not have."""
    table = table.detach().contiguous().view(len(table), *attention.shape)
    is_narrow = table.dtype is torch.bfloat16 and attention.dtype is torch.float32
    return table.view(torch.uint16) if is_narrow else table.to(attention.dtype)


def _exact(value: Any) -> Any:
    """A number of a table of attention in the type of the sums: bfloat16 is widened to float32."""
    raise NotImplementedError  # compiled only, by `_typed_exact`


@extending.overload(_exact, inline="always")  # type: ignore[untyped-decorator]
def _typed_exact(value: Any) -> Any:
    def widened(value: Any) -> Any:
        return np.uint32(np.uint32(value) << _S16).view(np.float32)

    def same(value: Any) -> Any:
        return value

    return widened if value == types.uint16 else same


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


@extending.intrinsic  # type: ignore[untyped-decorator]
def _prefetch(_: Any, address: Any) -> Any:  # noqa: ARG001 - typed below
    """Start loading the cache line at this address (int64)."""

    def code(context: Any, builder: Any, _: Any, arguments: Any) -> Any:
        number, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        form = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer], form)
        to_read, keep, data = number(0), number(3), number(1)
        builder.call(prefetch, [builder.inttoptr(arguments[0], pointer), to_read, keep, data])
        return context.get_dummy_value()

    return types.void(types.int64), code


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _prefetch_row(table: Any, row: Any, first: Any, last: Any) -> None:
    """Start loading the heads from `first` up to `last` of a row."""
    start = np.int64(table.ctypes.data) + np.int64(row) * table.strides[0]
    for line in range(start + first * table.strides[1], start + last * table.strides[1], _LINE):
        _prefetch(line)


@compiled_sums
def _forward(tables: Any, edges: Any, weights: Any, out: Any, slope: Any, first: Any, last: Any) -> None:
    (rows, own, attention), (columns, offsets, factors) = tables, edges
    heads, channels = attention.shape
    slope = attention.dtype.type(slope)
    target_row = np.empty_like(attention)
    for target in range(first, last):
        begin, end = offsets[target], offsets[target + 1]
        for head in range(heads):
            for channel in range(channels):
                target_row[head, channel] = _exact(own[target, head, channel])
                out[target, head, channel] = 0
        for edge in range(begin, end):
            if edge + _AHEAD < columns.size:
                _prefetch_row(rows, columns[edge + _AHEAD], 0, heads)
            source = rows[columns[edge]]
            for head in range(heads):
                logit = attention.dtype.type(0)
                for channel in range(channels):
                    value = _exact(source[head, channel]) + target_row[head, channel]
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
            source = rows[columns[edge]]
            for head in range(heads):
                weight = weights[edge, head]
                if factors.size:
                    weight *= factors[edge, head]
                for channel in range(channels):
                    out[target, head, channel] += weight * _exact(source[head, channel])


@compiled_sums
def _backward(tables: Any, edges: Any, read: Any, gradients: Any, slope: Any, first: Any, last: Any) -> None:
    (rows, own, attention), (columns, offsets, factors), (weights, out, gradient) = tables, edges, read
    rows_gradient, own_gradient, attention_gradient = gradients
    channels, zero = attention.shape[1], attention.dtype.type(0)
    slope = attention.dtype.type(slope)
    means = np.empty(len(attention), dtype=attention.dtype)
    target_row, passed_on = np.empty_like(attention), np.empty_like(attention)
    sums, totals = np.empty_like(attention), np.empty_like(attention)
    passed = np.empty(channels, dtype=attention.dtype)
    for target in range(offsets.size - 1):
        for head in range(first, last):
            # The mean of the weights' gradients: their products with the sources' rows add up to the output.
            mean = zero
            for channel in range(channels):
                target_row[head, channel] = _exact(own[target, head, channel])
                passed_on[head, channel] = _exact(gradient[target, head, channel])
                mean += passed_on[head, channel] * out[target, head, channel]
                sums[head, channel] = zero
                totals[head, channel] = zero
            means[head] = mean
        for edge in range(offsets[target], offsets[target + 1]):
            if edge + _AHEAD < columns.size:
                _prefetch_row(rows, columns[edge + _AHEAD], first, last)
                _prefetch_row(rows_gradient, columns[edge + _AHEAD], first, last)
            row = columns[edge]
            for head in range(first, last):
                weight = weights[edge, head]
                factor = factors[edge, head] if factors.size else attention.dtype.type(1)
                product = zero
                for channel in range(channels):
                    product += passed_on[head, channel] * _exact(rows[row, head, channel])
                logit_gradient = weight * (factor * product - means[head])
                weight *= factor
                sloped = logit_gradient * slope
                # In two loops, since one that writes to more arrays is not vectorized: they might overlap.
                for channel in range(channels):
                    value = _exact(rows[row, head, channel]) + target_row[head, channel]
                    passed[channel] = logit_gradient if value > 0 else sloped
                    sums[head, channel] += passed[channel] * value
                for channel in range(channels):
                    totals[head, channel] += passed[channel]
                    of_value = passed[channel] * attention[head, channel]
                    rows_gradient[row, head, channel] += of_value + weight * passed_on[head, channel]
        for head in range(first, last):
            for channel in range(channels):
                own_gradient[target, head, channel] = totals[head, channel] * attention[head, channel]
                attention_gradient[head, channel] += sums[head, channel]


# of the C library, called without the GIL: the file, an address, a size in bytes, an offset
_pread = types.ExternalFunction("pread", types.intp(types.intc, types.intp, types.uintp, types.int64))
_BITS = {8: np.uint64, 4: np.uint32, 2: np.uint16, 1: np.uint8}
_S16 = np.uint32(16)


def convertible(stored: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether `read_rows` supports this pair."""
    return stored is wanted or {stored, wanted} == {torch.float32, torch.bfloat16}


def read_rows(
    file: int, page: int, requests: NDArray[np.int64], scratch: Tensor, inside: Tensor, rows: Tensor, places: Tensor
) -> int:
    """Carry out `requests` (see `RowFile.begin`) until one fails, and return how many succeeded.

    `scratch` [elements] is the reader's memory, aligned to `page` bytes, viewed as the file's dtype.
    """
    stored, wanted = _bits(scratch), _bits(rows)
    return int(_read((file, stored.ctypes.data), page, requests, stored, inside.numpy(), wanted, places.numpy()))


@numba.njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _read(reader: Any, aligned: Any, requests: Any, stored: Any, inside: Any, rows: Any, places: Any) -> Any:
    (file, address), width = reader, rows.shape[1]
    for number in range(len(requests)):
        first, last, begin, end, start, stop = requests[number]
        done = 0
        while done < stop:
            page = done - done % aligned  # a short read may end anywhere
            size = _pread(file, address + page, end - begin - page, begin + page)
            if page + size <= done:  # an error, or the end of the file
                return number
            done = page + size
        offset = start // stored.itemsize
        for row in range(first, last):
            source = stored[offset + inside[row] * width : offset + (inside[row] + 1) * width]
            _convert(source, rows[places[row]])
    return len(requests)


@numba.njit(inline="always")  # type: ignore[untyped-decorator]
def _convert(source: Any, target: Any) -> None:
    """Copy floats of equal type, widen bfloat16, or round float32 to it: to nearest, ties to even, as torch does."""
    if source.itemsize == target.itemsize:
        for column in range(source.size):
            target[column] = source[column]
    elif source.itemsize < target.itemsize:
        for column in range(source.size):
            target[column] = np.uint32(source[column]) << _S16
    else:
        for column in range(source.size):
            bits = np.uint32(source[column])
            if (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):
                target[column] = np.uint16(0x7FC0)  # a NaN: rounding could make it an infinity
            else:
                bits += np.uint32(0x7FFF) + ((bits >> _S16) & np.uint32(1))
                target[column] = np.uint16(bits >> _S16)
