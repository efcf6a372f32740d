"""The sampling loops for PyG's loaders, compiled by numba: the same samples, bit for bit.

Serial, and without the GIL, as in `compiled`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from clusterctl.engine.graph.compiled import GOLDEN_BITS, compiled, mix
from clusterctl.engine.graph.neighbors import sizes

if TYPE_CHECKING:
    from clusterctl.engine.graph.blocks import Adjacency
    from clusterctl.engine.graph.neighbors import Draw

_U = np.uint64
_S32 = _U(32)


def sample_ranges_compiled(
    start: Tensor, degree: Tensor, counters: Tensor, count: int, key: int, *, replace: bool = False
) -> tuple[Tensor, Tensor]:
    """Like `neighbors.sample_ranges`."""
    offsets = torch.zeros(start.numel() + 1, dtype=torch.int64)
    torch.cumsum(sizes(degree, count, replace), 0, out=offsets[1:])
    positions = torch.empty(int(offsets[-1]), dtype=torch.int64)
    arrays = (array.numpy() for array in (start, degree, counters, offsets, positions))
    _pick(*arrays, _U(key % (1 << 64)), replace and count >= 0)
    return offsets, positions


def end_by_time_compiled(start: Tensor, end: Tensor, latest: Tensor, time: Tensor, sources: Tensor | None) -> Tensor:
    """Like `relation.end_by_time`."""
    found = torch.empty_like(start)
    of_node = sources is not None
    by_edge = time.new_empty(0, dtype=torch.int64) if sources is None else sources
    _bisect(*(array.numpy() for array in (start, end, latest, time, by_edge)), of_node, found.numpy())
    return found


def seen_compiled(
    edges: Adjacency,
    times: Tensor | None,
    ids: Tensor,
    latest: Tensor,
    keys: Tensor,
    sides: tuple[int, int],
    draw: Draw,
    *,
    last: bool,
) -> tuple[Tensor, Tensor]:
    """Like `relation.seen`, in three loops: what each id sees, which edges are drawn, and their sources' ids."""
    start, degree, counters = (np.empty(ids.numel(), dtype=np.int64) for _ in range(3))
    offsets = torch.empty(ids.numel() + 1, dtype=torch.int64)
    of_edges = latest[:0] if times is None else times
    arrays = [array.numpy() for array in (ids, edges.indptr, of_edges, latest, keys)]
    hop = sides[1], draw.count, times is not None, last and draw.count >= 0, draw.replace
    _see(*arrays, *hop, start, degree, counters, offsets.numpy())
    found, key = torch.empty(int(offsets[-1]), dtype=torch.int64), _U(draw.key % (1 << 64))
    _pick(start, degree, counters, offsets.numpy(), found.numpy(), key, draw.replace and draw.count >= 0)
    _name(ids.numpy(), edges.indices.numpy(), sides[1], sides[0], offsets.numpy(), found.numpy())
    return offsets, found


def first_compiled(waits: Tensor, offsets: Tensor, count: int) -> Tensor:
    """Like `relation.first`."""
    picks = torch.empty(count, offsets.numel() - 1, dtype=torch.int64)
    _first(waits.numpy(), offsets.numpy(), picks.numpy())
    return picks


class CompiledNumbering:
    """Like `relation.Numbering`, with a hash table of rows, at most half full; -1 marks an empty slot."""

    def __init__(self, seeds: Tensor) -> None:
        self._ids = seeds.numpy().astype(np.int64)
        self._count = self._ids.size
        self._slots = np.empty(0, dtype=np.int64)
        self._make_room(0)

    def __len__(self) -> int:
        return int(self._count)

    @property
    def ids(self) -> Tensor:
        """Like `Numbering.ids`."""
        return torch.from_numpy(self._ids[: self._count])

    def add(self, ids: Tensor) -> Tensor:
        """Like `Numbering.add`."""
        self._make_room(ids.numel())
        rows = torch.empty_like(ids)
        self._count = _add(self._slots, self._ids, self._count, ids.numpy(), rows.numpy())
        return rows

    def find(self, ids: Tensor) -> Tensor:
        """Like `Numbering.find`."""
        rows = torch.empty_like(ids)
        _find(self._slots, self._ids, ids.numpy(), rows.numpy())
        return rows

    def _make_room(self, more: int) -> None:
        most = self._count + more
        if most > self._ids.size:
            self._ids = np.concatenate([self._ids[: self._count], np.empty(most, dtype=np.int64)])
        if 2 * most >= self._slots.size:
            self._slots = np.full(1 << (4 * most + 1).bit_length(), -1, dtype=np.int64)
            _fill_slots(self._slots, self._ids, self._count)


@compiled
def _pick(starts: Any, degrees: Any, counters: Any, offsets: Any, positions: Any, key: Any, replace: Any) -> None:
    for target in range(starts.size):
        start, degree, begin = starts[target], degrees[target], offsets[target]
        count = offsets[target + 1] - begin
        if count == degree and not replace:
            for place in range(count):
                positions[begin + place] = start + place
            continue
        own_key = mix(_U(counters[target]) * GOLDEN_BITS + key)
        for j in range(count):
            highest = degree - 1 if replace else degree - count + j
            bits = mix((own_key + _U(j)) * GOLDEN_BITS)
            pick = start + np.int64(((bits >> _S32) * _U(highest + 1)) >> _S32)
            for earlier in range(0 if replace else j):
                if positions[begin + earlier] == pick:
                    pick = start + highest
                    break
            positions[begin + j] = pick


@compiled
def _bisect(starts: Any, ends: Any, latest: Any, time: Any, sources: Any, of_node: Any, found: Any) -> None:
    for target in range(starts.size):
        found[target] = _end_until(starts[target], ends[target], latest[target], time, sources, of_node)


@compiled
def _end_until(low: Any, high: Any, latest: Any, time: Any, sources: Any, of_node: Any) -> Any:
    while low < high:
        middle = (low + high) // 2
        if time[sources[middle] if of_node else middle] <= latest:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _see(
    ids: Any,
    indptr: Any,
    time: Any,
    latest: Any,
    keys: Any,
    targets: Any,
    count: Any,
    has_times: Any,
    is_last: Any,
    replace: Any,
    starts: Any,
    degrees: Any,
    counters: Any,
    offsets: Any,
) -> None:
    offsets[0] = 0
    for number in range(ids.size):
        tree = ids[number] // targets
        node = ids[number] - tree * targets
        start, high = indptr[node], indptr[node + 1]
        if has_times:
            high = _end_until(start, high, latest[tree], time, indptr, False)  # of edges: no sources are read
            if is_last:
                start = max(start, high - count)
        degree = high - start
        starts[number], degrees[number], counters[number] = start, degree, keys[tree] + node
        taken = degree
        if count >= 0:
            taken = min(degree, 1) * count if replace else min(degree, count)
        offsets[number + 1] = offsets[number] + taken


@compiled
def _name(ids: Any, indices: Any, targets: Any, sources: Any, offsets: Any, found: Any) -> None:
    for number in range(ids.size):
        first = ids[number] // targets * sources
        for place in range(offsets[number], offsets[number + 1]):
            found[place] = first + indices[found[place]]


@compiled
def _first(waits: Any, offsets: Any, picks: Any) -> None:
    count = picks.shape[0]
    for target in range(offsets.size - 1):
        for place in range(offsets[target], offsets[target + 1]):
            kept = min(place - offsets[target], count)
            if kept == count and waits[picks[count - 1, target]] <= waits[place]:
                continue
            row = min(kept, count - 1)
            while row > 0 and waits[picks[row - 1, target]] > waits[place]:
                picks[row, target] = picks[row - 1, target]
                row -= 1
            picks[row, target] = place


@compiled
def _slot_of(slots: Any, ids: Any, wanted: Any) -> Any:
    mask = slots.size - 1
    slot = np.int64(mix(_U(wanted)) & _U(mask))
    while slots[slot] >= 0 and ids[slots[slot]] != wanted:
        slot = (slot + 1) & mask
    return slot


@compiled
def _fill_slots(slots: Any, ids: Any, count: Any) -> None:
    for row in range(count):
        slot = _slot_of(slots, ids, ids[row])
        if slots[slot] < 0:
            slots[slot] = row


@compiled
def _add(slots: Any, ids: Any, count: Any, new: Any, rows: Any) -> Any:
    for place in range(new.size):
        slot = _slot_of(slots, ids, new[place])
        if slots[slot] < 0:
            ids[count] = new[place]
            slots[slot] = count
            count += 1
        rows[place] = slots[slot]
    return count


@compiled
def _find(slots: Any, ids: Any, wanted: Any, rows: Any) -> None:
    for place in range(wanted.size):
        rows[place] = slots[_slot_of(slots, ids, wanted[place])]
