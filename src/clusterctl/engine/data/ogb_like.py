"""Graphs like the node data sets of the Open Graph Benchmark at any scale, in their raw layouts.

The numbers of nodes, edges, features and classes, and the sizes of the splits, are those of the real ones. The
structure is that of `reddit`: features and most edges follow the classes, and one label in twenty is wrong. In
ogbn-mag, papers and their citations are such a graph; the other relations are random.
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from clusterctl.engine.data.reddit import (
    TRUTH_FILE,
    ArchiveWriter,
    Shape,
    community,
    features,
    sources,
    targets,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from clusterctl.engine.data.reddit import Community
    from clusterctl.engine.graph.storage import EdgeType

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
    nodes, total = _labelled_nodes(truth, model.labelled), int(truth.degree.sum())

    def counted_sources() -> Iterator[np.ndarray[tuple[int], np.dtype[np.int64]]]:
        done = 0
        for piece in sources(truth):
            yield piece.numpy()
            done += piece.numel()
            progress(done, total)

    edges = EdgePieces(total, counted_sources, lambda: (piece.numpy() for piece in targets(truth)))
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


def _random_edges(counts: dict[str, int], relation: EdgeType, edges: int, random: torch.Generator) -> EdgePieces:
    def drawn(node_type: str) -> Iterator[np.ndarray[tuple[int], np.dtype[np.int64]]]:
        for start in range(0, edges, _EDGES_AT_ONCE):
            size = min(_EDGES_AT_ONCE, edges - start)
            yield torch.randint(counts[node_type], (size,), generator=random).numpy()

    source, _, target = relation
    return EdgePieces(edges, lambda: drawn(source), lambda: drawn(target))


# Write graphs in the raw layouts of the Open Graph Benchmark, without the years of papers that some have.


Array = np.ndarray[Any, Any]
_COMPRESSION = 1


class EdgePieces(NamedTuple):
    """Edges, as matching chunks of int [edges]; each function is called once, `sources` first."""

    total: int
    sources: Callable[[], Iterable[Array]]
    targets: Callable[[], Iterable[Array]]


class LabelledNodes(NamedTuple):
    """Nodes with features, classes and splits."""

    features: Callable[[], Iterable[Array]]  # chunks of float32 [nodes, features]; called once
    width: int
    labels: Array  # int64 [nodes], -1 for none
    split: tuple[Array, Array, Array]  # training, validation and test nodes


def write_tables(root: Path, nodes: LabelledNodes, edges: EdgePieces, split: str) -> None:
    """Like ogbn-arxiv (split "time") and ogbn-products (split "sales_ranking")."""
    raw = root / "raw"
    _write_edges(raw, edges)
    _write_text(raw / "num-node-list.csv.gz", [[len(nodes.labels)]])
    _write_nodes(raw, raw, nodes)
    _write_split(root / "split" / split, nodes)


def write_archives(root: Path, nodes: LabelledNodes, edges: EdgePieces, split: str = "time") -> None:
    """Like ogbn-papers100M."""
    count = len(nodes.labels)
    (root / "raw").mkdir(parents=True)
    with ArchiveWriter(root / "raw" / "data.npz") as archive:
        archive.put(
            "edge_index",
            np.int64,
            (2, edges.total),
            (piece for side in (edges.sources, edges.targets) for piece in side()),
        )
        archive.put("node_feat", np.float32, (count, nodes.width), nodes.features())
        archive.put("num_nodes_list", np.int64, (1,), [np.array([count])])
        archive.put("num_edges_list", np.int64, (1,), [np.array([edges.total])])
    labels = np.where(nodes.labels < 0, np.nan, nodes.labels)
    with ArchiveWriter(root / "raw" / "node-label.npz") as archive:
        archive.put("node_label", np.float32, (count, 1), [labels])
    _write_split(root / "split" / split, nodes)


def write_relations(
    root: Path,
    node_type: str,
    nodes: LabelledNodes,
    counts: Mapping[str, int],
    edges: Mapping[EdgeType, EdgePieces],
    split: str = "time",
) -> None:
    """Like ogbn-mag: `counts` are the nodes per type; only `node_type` has features, labels and splits."""
    raw = root / "raw"
    _write_lines(raw / "num-node-dict.csv.gz", [",".join(counts), ",".join(map(str, counts.values()))])
    _write_lines(raw / "triplet-type-list.csv.gz", [",".join(relation) for relation in edges])
    for relation, ends in edges.items():
        _write_edges(raw / "relations" / "___".join(relation), ends)
    has_any = [",".join(counts), ",".join(str(name == node_type) for name in counts)]
    for path in (raw / "nodetype-has-feat", raw / "nodetype-has-label", root / "split" / split / "nodetype-has-split"):
        _write_lines(path.with_name(f"{path.name}.csv.gz"), has_any)
    _write_nodes(raw / "node-feat" / node_type, raw / "node-label" / node_type, nodes)
    _write_split(root / "split" / split / node_type, nodes)


def _write_edges(folder: Path, edges: EdgePieces) -> None:
    pairs = zip(edges.sources(), edges.targets(), strict=True)
    _write_text(folder / "edge.csv.gz", (np.stack(pair, axis=1) for pair in pairs))
    _write_text(folder / "num-edge-list.csv.gz", [[edges.total]])


def _write_nodes(features: Path, labels: Path, nodes: LabelledNodes) -> None:
    _write_text(features / "node-feat.csv.gz", nodes.features())
    _write_text(labels / "node-label.csv.gz", [np.where(nodes.labels < 0, np.nan, nodes.labels)[:, None]])


def _write_split(folder: Path, nodes: LabelledNodes) -> None:
    for name, part in zip(("train", "valid", "test"), nodes.split, strict=True):
        _write_text(folder / f"{name}.csv.gz", [part])


def _write_text(path: Path, pieces: Iterable[Any]) -> None:
    """Write numbers, one row per line; floats with up to nine digits, which float32 needs."""

    def lines() -> Iterator[str]:
        for piece in pieces:
            rows = np.asarray(piece)
            rows = rows.reshape(len(rows), -1)
            if np.issubdtype(rows.dtype, np.integer):
                yield from (",".join(map(str, row)) for row in rows.tolist())
            else:
                form = ",".join(["%.9g"] * rows.shape[1])
                yield from (form % tuple(row) for row in rows.tolist())

    _write_lines(path, lines())


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", compresslevel=_COMPRESSION, encoding="ascii", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)
