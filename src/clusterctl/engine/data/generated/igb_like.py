"""Graphs like IGB-heterogeneous at any scale, in its layout: its types, relations, features and classes.

The numbers of nodes and edges of each type are known for five sizes of the real graph; they are interpolated between
these sizes, and proportional to the papers below the smallest (`shared.spec.data_sizes`).

The degree distributions are not published; the weights here are lognormal. Every node has one of the 19 classes, which
its features and most of its edges follow, and one paper in twenty gets a random label.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from clusterctl.engine.data.generated.reddit_like import HOMOPHILY, TRUTH_FILE, WRONG_LABELS, Population
from clusterctl.engine.data.igb import ALL_PAPERS, CLASSES, FEATURES, LABELLED, RELATIONS
from clusterctl.shared.spec.data_sizes import IGB_EDGES, IGB_NODES, PAPER, igb_count, igb_papers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

BEST_ACCURACY = 1 - WRONG_LABELS * (1 - 1 / CLASSES)  # if every class is known, but not which labels are wrong
_SIGMA, _SIGNAL = 1.0, 0.15
_EDGES_AT_ONCE, _NODES_AT_ONCE = 1 << 20, 1 << 14


class NodesOfAType(NamedTuple):
    """The nodes of one type."""

    weights: Tensor  # float64; ends of edges are drawn in proportion
    classes: Tensor  # int64


def write(folder: Path, scale: float, seed: int, progress: Callable[[int, int], None] = lambda *_: None) -> float:
    """Write the raw files and the truth into `folder`; returns the best possible accuracy.

    Memory grows with the nodes, but not with their features or the edges. `progress` is called with the edges done.
    """
    random = torch.Generator().manual_seed(seed)
    papers = igb_papers(scale)
    nodes = {}
    for kind, counts in IGB_NODES.items():
        number = igb_count(counts, papers)
        weights = torch.randn(number, generator=random, dtype=torch.float64).mul_(_SIGMA).exp_()
        classes = torch.randint(CLASSES, (number,), generator=random)
        classes[:CLASSES] = torch.arange(CLASSES)  # no class is empty
        nodes[kind] = NodesOfAType(weights, classes)
    for kind, own in nodes.items():
        _write_features(folder / "processed" / kind / "node_feat.npy", own.classes, random)
    _write_labels(folder / "processed" / PAPER / "node_label_19.npy", nodes[PAPER].classes, random)
    edges = {relation: igb_count(IGB_EDGES[relation], papers) for relation in RELATIONS}
    done = 0
    for relation, count in edges.items():
        path = folder / "processed" / "__".join(relation) / "edge_index.npy"
        rows = _created(path, np.int32, (count, 2))
        targets, classes = _population(nodes[relation[2]]), nodes[relation[0]].classes
        sources = _population(nodes[relation[0]])
        for start in range(0, count, _EDGES_AT_ONCE):
            piece = rows[start : start + _EDGES_AT_ONCE]
            piece[:, 0] = sources.drawn(torch.zeros(len(piece), dtype=torch.int64), 0.0, random)
            piece[:, 1] = targets.drawn(classes[torch.from_numpy(piece[:, 0]).long()], HOMOPHILY, random)
            done += len(piece)
            progress(done, sum(edges.values()))
    truth = {"best_accuracy": BEST_ACCURACY, "scale": scale, "seed": seed}
    (folder / TRUTH_FILE).write_text(json.dumps(truth) + "\n")
    return BEST_ACCURACY


def _population(nodes: NodesOfAType) -> Population:
    return Population(nodes.weights, nodes.classes, CLASSES)


def _write_features(path: Path, classes: Tensor, random: torch.Generator) -> None:
    """Write features around the centre of each node's class; every node type has its own centres."""
    centres = torch.randn(CLASSES, FEATURES, generator=random).mul_(_SIGNAL)
    rows = _created(path, np.float32, (classes.numel(), FEATURES))
    for start in range(0, classes.numel(), _NODES_AT_ONCE):
        part = classes[start : start + _NODES_AT_ONCE]
        rows[start : start + len(part)] = torch.randn(len(part), FEATURES, generator=random).add_(centres[part])


def _write_labels(path: Path, classes: Tensor, random: torch.Generator) -> None:
    wrong = torch.rand(classes.numel(), generator=random) < WRONG_LABELS
    others = torch.randint(CLASSES, classes.shape, generator=random)
    labels = torch.where(wrong, others, classes).to(torch.float32)
    if classes.numel() == ALL_PAPERS:
        labels[LABELLED:] = torch.nan
    _created(path, np.float32, tuple(labels.shape))[:] = labels


def _created(path: Path, kind: type, shape: tuple[int, ...]) -> Any:
    """A memory-mapped array in a new file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=shape)
