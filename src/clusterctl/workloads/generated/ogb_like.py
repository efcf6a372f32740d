"""Graphs like the node data sets of the Open Graph Benchmark at any scale, in their raw layouts.

The numbers of nodes, edges, features and classes, and the sizes of the splits, are those of the real ones. The
structure is that of `reddit_like`: features and most edges follow the classes, and one label in twenty is wrong. In
ogbn-mag, papers and their citations are such a graph; the other relations are random.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import torch

from clusterctl.workloads.generated.ogb_layouts import (
    EdgePieces,
    LabelledNodes,
    write_archives,
    write_relations,
    write_tables,
)
from clusterctl.workloads.generated.reddit_like import TRUTH_FILE, Shape, community, features, sources, targets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import numpy as np

    from clusterctl.graph.storage import EdgeType
    from clusterctl.workloads.generated.reddit_like import Community

    Progress = Callable[[int, int], None]

_EDGES_AT_ONCE = 1 << 20


class Model(NamedTuple):
    """A data set to imitate."""

    shape: Shape
    split: str = "time"
    labelled: float = 1.0  # share of nodes with a label; only these are in the splits


MODELS = {
    "ogbn-arxiv": Model(Shape(169_343, 6.89, 128, 40, largest=13_161, split=(0.537, 0.713))),
    "ogbn-products": Model(
        Shape(2_449_029, 25.26, 100, 47, largest=17_481, split=(0.0803, 0.0964)), split="sales_ranking"
    ),
    "ogbn-papers100M": Model(
        Shape(111_059_956, 14.55, 128, 172, largest=238_894, split=(0.78, 0.861)), labelled=1_546_782 / 111_059_956
    ),
    "ogbn-mag": Model(Shape(736_389, 7.36, 128, 349, largest=4_744, split=(0.855, 0.943))),
}
OTHER_NODES = {"author": 1_134_649, "field_of_study": 59_965, "institution": 8_740}  # of ogbn-mag
OTHER_EDGES = {
    ("author", "affiliated_with", "institution"): 1_043_998,
    ("author", "writes", "paper"): 7_145_660,
    ("paper", "has_topic", "field_of_study"): 7_505_078,
}


def write(name: str, folder: Path, scale: float, seed: int, progress: Progress = lambda *_: None) -> float:
    """Write the raw files and the truth into `folder`; returns the best possible accuracy.

    Memory grows with the nodes, but not with their features or the edges. `progress` is called with the edges done.
    """
    model = MODELS[name]
    truth = community(scale, seed, model.shape)
    nodes, edges = _labelled_nodes(truth, model.labelled), _edges(truth, progress)
    if name == "ogbn-mag":
        counts = {"paper": len(nodes.labels)} | {kind: max(1, round(n * scale)) for kind, n in OTHER_NODES.items()}
        relations: dict[EdgeType, EdgePieces] = {
            relation: _random_edges(counts, relation, round(count * scale), truth.random)
            for relation, count in OTHER_EDGES.items()
        }
        write_relations(folder, "paper", nodes, counts, relations | {("paper", "cites", "paper"): edges}, model.split)
    elif name == "ogbn-papers100M":
        write_archives(folder, nodes, edges, model.split)
    else:
        write_tables(folder, nodes, edges, model.split)
    best = model.shape.best_accuracy
    (folder / TRUTH_FILE).write_text(json.dumps({"best_accuracy": best, "scale": scale, "seed": seed}) + "\n")
    return best


def _labelled_nodes(truth: Community, share: float) -> LabelledNodes:
    labels, parts = truth.labels, truth.parts
    if share < 1:
        known = torch.rand(labels.numel(), generator=truth.random) < share
        known[torch.cat([part[:1] for part in parts])] = True  # no split is empty
        labels = torch.where(known, labels, -1)
        train, val, test = (part[known[part]] for part in parts)
        parts = train, val, test
    split = (parts[0].numpy(), parts[1].numpy(), parts[2].numpy())
    width = truth.centres.size(1)
    return LabelledNodes(lambda: (piece.numpy() for piece in features(truth)), width, labels.numpy(), split)


def _edges(truth: Community, progress: Progress) -> EdgePieces:
    total = int(truth.degree.sum())

    def counted() -> Iterator[np.ndarray[tuple[int], np.dtype[np.int64]]]:
        done = 0
        for piece in sources(truth):
            yield piece.numpy()
            done += piece.numel()
            progress(done, total)

    return EdgePieces(total, counted, lambda: (piece.numpy() for piece in targets(truth)))


def _random_edges(counts: dict[str, int], relation: EdgeType, edges: int, random: torch.Generator) -> EdgePieces:
    def drawn(node_type: str) -> Iterator[np.ndarray[tuple[int], np.dtype[np.int64]]]:
        for start in range(0, edges, _EDGES_AT_ONCE):
            size = min(_EDGES_AT_ONCE, edges - start)
            yield torch.randint(counts[node_type], (size,), generator=random).numpy()

    source, _, target = relation
    return EdgePieces(edges, lambda: drawn(source), lambda: drawn(target))
