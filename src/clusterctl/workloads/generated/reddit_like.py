"""Graphs like Reddit's at any scale: degrees, features, classes, homophily, and a share of labels that are wrong.

Lognormal degrees of mean 491 (sigma 1.06, at most 21,657), 602 features around the class's centre, 41 classes, and 70 %
of the edges from nodes of the same class; sources are drawn in proportion to their degrees. Where edges fall is random
beyond that, so caches behave differently on the real graph. One label in twenty is drawn anew among all classes, which
no model can foresee: it bounds the accuracy.
"""

from __future__ import annotations

import json
import math
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from clusterctl.graph.storage import Graph
from clusterctl.workloads.reddit import RAW_FILES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

NODES, DEGREE, FEATURES, CLASSES = 232_965, 491, 602, 41
HOMOPHILY, WRONG_LABELS = 0.7, 0.05
BEST_ACCURACY = 1 - WRONG_LABELS * (1 - 1 / CLASSES)
TRUTH_FILE = "truth.json"  # beside `raw`
_SIGMA, _LARGEST, _NOISE = 1.06, 21_657, 6.0
_EDGES_AT_ONCE, _NODES_AT_ONCE = 1 << 22, 1 << 14
_SPLIT = (0.66, 0.76)  # Reddit's shares of training, validation and test nodes


@dataclass(frozen=True)
class Community:
    """The truth behind the graph."""

    degree: Tensor  # int64 [nodes]
    weights: Tensor  # float64 [nodes], by which sources are drawn
    classes: Tensor  # int64 [nodes], that features and edges follow
    labels: Tensor  # int64 [nodes], as published, some wrong
    centres: Tensor  # float [classes, features]
    parts: tuple[Tensor, Tensor, Tensor]  # int64, ascending: training, validation and test nodes
    random: torch.Generator


def community(scale: float, seed: int) -> Community:
    """`scale` times Reddit's nodes, and the same average degree."""
    random = torch.Generator().manual_seed(seed)
    nodes = max(CLASSES, round(NODES * scale))
    weights = torch.randn(nodes, generator=random, dtype=torch.float64).mul_(_SIGMA).exp_()
    weights *= DEGREE / weights.mean()
    classes = torch.randint(CLASSES, (nodes,), generator=random)
    classes[:CLASSES] = torch.arange(CLASSES)  # none is empty
    wrong = torch.rand(nodes, generator=random) < WRONG_LABELS
    others = torch.randint(CLASSES, (nodes,), generator=random)
    order = torch.randperm(nodes, generator=random)
    train, val, test = (part.sort().values for part in order.tensor_split([round(share * nodes) for share in _SPLIT]))
    return Community(
        degree=weights.clamp(1, min(_LARGEST, nodes - 1)).to(torch.int64),
        weights=weights,
        classes=classes,
        labels=torch.where(wrong, others, classes),
        centres=torch.randn(CLASSES, FEATURES, generator=random),
        parts=(train, val, test),
        random=random,
    )


def reddit_like(scale: float, seed: int = 0) -> Graph:
    """The graph itself, with neighbours in no order, some repeated."""
    truth = community(scale, seed)
    x = torch.cat([*_features(truth)])
    indptr = torch.cat([truth.degree.new_zeros(1), truth.degree.cumsum(0)])
    return Graph(indptr, torch.cat([*_sources(truth)]), x, truth.labels, *truth.parts, num_classes=CLASSES)


def write(folder: Path, scale: float, seed: int, progress: Callable[[int, int], None] = lambda *_: None) -> float:
    """Write the raw files and the truth into `folder`; returns the best possible accuracy.

    Memory is that of the nodes, neither of their features nor of the edges. `progress` learns of the edges done.
    """
    truth = community(scale, seed)
    nodes, edges = truth.degree.numel(), int(truth.degree.sum())
    split = torch.empty(nodes, dtype=torch.int64)
    for number, part in enumerate(truth.parts, start=1):
        split[part] = number
    data, graph = (folder / "raw" / name for name in RAW_FILES)
    data.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(data, "w") as archive:
        _put(archive, "feature", np.float32, (nodes, FEATURES), _features(truth))
        _put(archive, "label", np.int64, (nodes,), [truth.labels])
        _put(archive, "node_types", np.int64, (nodes,), [split])
    with zipfile.ZipFile(graph, "w") as archive:  # a scipy.sparse.coo_array, as PyG reads it
        _put(archive, "row", np.int32, (edges,), _sources(truth), progress)
        _put(archive, "col", np.int32, (edges,), _targets(truth, torch.int32))
        _put(archive, "data", np.uint8, (edges,), (torch.ones_like(part) for part in _targets(truth, torch.uint8)))
        _put(archive, "shape", np.int64, (2,), [torch.tensor([nodes, nodes])])
        _put(archive, "format", np.dtype("S3"), (), [np.array(b"coo")])
    (folder / TRUTH_FILE).write_text(json.dumps({"best_accuracy": BEST_ACCURACY, "scale": scale, "seed": seed}) + "\n")
    return BEST_ACCURACY


def _features(truth: Community) -> Iterator[Tensor]:
    for classes in torch.split(truth.classes, _NODES_AT_ONCE):
        noise = torch.randn(classes.numel(), FEATURES, generator=truth.random)
        yield truth.centres[classes] + _NOISE * noise


def _targets(truth: Community, dtype: torch.dtype = torch.int64) -> Iterator[Tensor]:
    """The target of every edge, some at a time."""
    bounds = truth.degree.cumsum(0)
    for first in range(0, int(bounds[-1]), _EDGES_AT_ONCE):
        edges = torch.arange(first, min(first + _EDGES_AT_ONCE, int(bounds[-1])))
        yield torch.searchsorted(bounds, edges, right=True).to(dtype)


def _sources(truth: Community) -> Iterator[Tensor]:
    """Where the edges come from, by target: a position on the line of all weights, or on the class's piece of it."""
    order = truth.classes.argsort(stable=True)  # a class's nodes lie next to each other
    line = truth.weights[order].cumsum(0)
    ends = line[truth.classes.bincount(minlength=CLASSES).cumsum(0) - 1]
    begins = torch.cat([ends.new_zeros(1), ends[:-1]])
    for targets in _targets(truth):
        position = torch.rand(targets.numel(), generator=truth.random, dtype=torch.float64)
        alike = torch.rand(targets.numel(), generator=truth.random) < HOMOPHILY
        own = truth.classes[targets]
        low, high = torch.where(alike, begins[own], 0.0), torch.where(alike, ends[own], ends[-1])
        places = torch.searchsorted(line, low + position * (high - low)).clamp_(max=order.numel() - 1)
        yield order[places].to(torch.int32)


def _put(
    archive: zipfile.ZipFile,
    name: str,
    kind: np.dtype | type,
    shape: tuple[int, ...],
    parts: Iterable[Tensor | np.ndarray],
    progress: Callable[[int, int], None] = lambda *_: None,
) -> None:
    """Write an array into a .npz, a part at a time."""
    header = {"descr": np.dtype(kind).str, "fortran_order": False, "shape": shape}
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array_header_2_0(file, header)
        written = 0
        for part in parts:
            array = np.asarray(part, dtype=kind)
            file.write(array.tobytes())
            written += array.size
            progress(written, math.prod(shape))
    assert written == math.prod(shape)
