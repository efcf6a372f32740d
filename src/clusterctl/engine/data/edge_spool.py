"""Build the adjacency of edges that arrive in chunks, in less memory than the edges themselves would take.

They are spooled to two int32 files in a scratch folder and read back in chunks, twice: once to count the edges of each
target, and once to put every edge in its place. Peak memory is 4 bytes per edge of the result (8 per spooled edge if
edges count in both directions), about 60 bytes per node, and 200 MB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Self

import numpy as np
import torch
from torch import Tensor

from clusterctl.engine.graph.storage import shuffled_order

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Ends = NDArray[np.int32]

MOST_NODES = 2**31 - 1  # node ids are int32
_EDGES_AT_ONCE = 1 << 20
_HALF, _LOWER = 32, 0xFFFFFFFF  # of a key: a target above, a source below


class EdgeSpool:
    """Two files, for the sources and the targets of edges; they may be written in different chunks.

    The `folder` must exist. Use it as a context manager while writing the edges.
    """

    def __init__(self, folder: Path) -> None:
        self._paths = folder / "sources.i32", folder / "targets.i32"

    def __enter__(self) -> Self:
        self._sources, self._targets = (path.open("wb") for path in self._paths)
        return self

    def __exit__(self, *_: object) -> None:
        self._sources.close()
        self._targets.close()

    def add_sources(self, nodes: Numbers) -> None:
        """Append int64 [edges] sources, each from 0 to `MOST_NODES`."""
        _write(self._sources, nodes)

    def add_targets(self, nodes: Numbers) -> None:
        """Append int64 [edges] targets."""
        _write(self._targets, nodes)

    def read(self) -> Iterator[tuple[Ends, Ends]]:
        """The sources and targets, int32 [edges], one chunk at a time."""
        sources_path, targets_path = self._paths
        with sources_path.open("rb") as sources, targets_path.open("rb") as targets:
            while len(piece := np.fromfile(sources, np.int32, _EDGES_AT_ONCE)):
                yield piece, np.fromfile(targets, np.int32, _EDGES_AT_ONCE)


def _write(file: BinaryIO, nodes: Numbers) -> None:
    file.write(nodes.astype(np.int32).tobytes())


def adjacency(
    spool: EdgeSpool, num_targets: int, num_sources: int, *, undirected: bool, shuffled: bool
) -> tuple[Tensor, Tensor]:
    """`indptr` and `indices` of the spooled edges, in the format of `storage.compressed`.

    Duplicate edges count once. With `undirected`, for nodes of one type, every edge counts in both directions.
    `shuffled` lists the sources of every target in one random order of all nodes, instead of ascending.
    """
    order = shuffled_order(num_sources).to(torch.int32).numpy() if shuffled else None
    place = None
    if order is not None:
        place = np.empty_like(order)
        place[order] = np.arange(len(order), dtype=np.int32)
    indptr = np.zeros(num_targets + 1, dtype=np.int64)  # counts repeated edges at first
    for sources, targets in spool.read():
        for ends in (sources, targets) if undirected else (targets,):
            np.add.at(indptr, ends.astype(np.int64) + 1, 1)
    np.cumsum(indptr, out=indptr)
    places = np.empty(int(indptr[-1]), dtype=np.int32)
    _fill(places, indptr[:-1].copy(), spool, place, undirected)
    del place
    _tidy_rows(places, indptr)
    places.resize(int(indptr[-1]), refcheck=False)  # in place: a copy would double the memory
    if order is not None:
        for start in range(0, len(places), _EDGES_AT_ONCE):
            piece = places[start : start + _EDGES_AT_ONCE]
            piece[:] = order[piece]
    return torch.from_numpy(indptr), torch.from_numpy(places)


def _fill(places: Ends, free: Numbers, spool: EdgeSpool, place: Ends | None, undirected: bool) -> None:
    """Put every source, or its `place`, among its target's edges; `free` has the next free place of each target."""
    for ends in spool.read():
        directions = [ends, ends[::-1]] if undirected else [ends]
        # Keys that sort by target and then by source.
        piece = np.concatenate(
            [into.astype(np.int64) << _HALF | (out if place is None else place[out]) for out, into in directions]
        )
        piece.sort()
        targets = piece >> _HALF
        firsts = np.flatnonzero(np.append(True, targets[1:] != targets[:-1]))
        counts = np.diff(np.append(firsts, len(targets)))
        rows = targets[firsts]
        shift = free[rows] - firsts
        places[np.arange(len(piece)) + np.repeat(shift, counts)] = piece & _LOWER
        free[rows] += counts


def _tidy_rows(places: Ends, indptr: Numbers) -> None:
    """Sort and deduplicate the places of every row in place, closing the gaps."""
    written = first = 0
    while first < len(indptr) - 1:
        begin = int(indptr[first])
        last = max(first + 1, int(np.searchsorted(indptr, begin + _EDGES_AT_ONCE, side="right")) - 1)
        degrees = np.diff(indptr[first : last + 1])
        keys = np.repeat(np.arange(len(degrees)), degrees) << _HALF | places[begin : int(indptr[last])]
        keys.sort()
        if len(keys):
            keys = keys[np.append(True, keys[1:] != keys[:-1])]
        places[written : written + len(keys)] = keys & _LOWER
        kept = np.bincount(keys >> _HALF, minlength=len(degrees))
        indptr[first:last] = written + np.cumsum(kept) - kept
        written += len(keys)
        first = last
    indptr[-1] = written
