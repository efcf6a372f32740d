"""Write graphs in the raw layouts of the Open Graph Benchmark, without the years of papers that some have.

Edges and features come in chunks, so that a graph need not fit into memory. Text is compressed at the lowest level,
which is many times faster and hardly larger.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clusterctl.workloads.generated.npz import ArchiveWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from clusterctl.graph.storage import EdgeType

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
        archive.put("edge_index", np.int64, (2, edges.total), _chained(edges.sources, edges.targets))
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
    _write_lines(path, (line for piece in pieces for line in _lines(np.asarray(piece))))


def _lines(rows: Array) -> Iterable[str]:
    rows = rows.reshape(len(rows), -1)
    if np.issubdtype(rows.dtype, np.integer):
        return (",".join(map(str, row)) for row in rows.tolist())
    form = ",".join(["%.9g"] * rows.shape[1])
    return (form % tuple(row) for row in rows.tolist())


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", compresslevel=_COMPRESSION, encoding="ascii", newline="\n") as file:
        file.writelines(f"{line}\n" for line in lines)


def _chained(*parts: Callable[[], Iterable[Array]]) -> Iterable[Array]:
    return (piece for part in parts for piece in part())
