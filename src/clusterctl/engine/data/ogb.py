"""The raw layouts of the Open Graph Benchmark's node data sets, read without its package.

A folder is recognised by its files (`spec.train` lists them). There are three layouts:

* tables, like ogbn-arxiv and ogbn-products: gzipped text without headers, one line per edge, node, or node of a split;
* archives, like ogbn-papers100M: numpy arrays in raw/data.npz and raw/node-label.npz, the splits as text;
* relations, like ogbn-mag: tables for each type of nodes and edges.

Files are read once, in chunks. Features go to a memory-mapped file in the scratch folder, edges through an `EdgeSpool`.
Peak memory is half the size of the edge index (two int32 for an edge that counts in both directions, where the index
has two int64), plus 60 bytes per node, plus 400 MB.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from clusterctl.engine.data.edge_spool import MOST_NODES, EdgeSpool, adjacency
from clusterctl.engine.data.number_files import ArchivedArray, bad_data, text_numbers, text_rows, text_words
from clusterctl.engine.graph.storage import Graph, Recipe
from clusterctl.shared.spec.train import NODE_LAYOUTS, OGB_ARCHIVES, OGB_RELATIONS, OGB_TABLES, likeliest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.engine.data.number_files import FileRows
    from clusterctl.engine.graph.storage import EdgeType

_SPLITS = ("train", "valid", "test")
_WHOLE = "is the data set's folder complete?"
_MOST_EDGES = 2**62
_CORRECT = "correct the file, or unpack the data set again"


def is_here(root: str | Path) -> bool:
    """Whether the folder has one of the three layouts, complete or not."""
    return _layout_of(Path(root)) in (OGB_TABLES, OGB_ARCHIVES, OGB_RELATIONS)


def _layout_of(root: Path) -> tuple[str, ...]:
    return likeliest(NODE_LAYOUTS, root)


def raw_identity(root: str | Path) -> dict[str, Any]:
    """Identifies a data set: the location of its raw files, their sizes and times. Raises TaskError."""
    folder = Path(root).resolve()
    identity: dict[str, Any] = {"root": str(folder)}
    for pattern in _layout_of(folder):
        found = sorted(folder.glob(pattern))
        if not found:
            raise bad_data(f"no data: {folder} lacks {pattern}", _WHOLE)
        for path in found:
            status = path.stat()
            identity[str(path.relative_to(folder))] = [status.st_size, status.st_mtime_ns]
    return identity


def recipe(root: str | Path, *, undirected: bool) -> Recipe[Graph]:
    """How to prepare the data set in `root`, once for all ranks, runs and workloads. Raises TaskError."""
    identity = raw_identity(root) | {"undirected": undirected}
    return Recipe("ogb", identity, lambda scratch: read_raw(Path(identity["root"]), scratch, undirected=undirected))


def read_raw(root: Path, scratch: Path, *, undirected: bool = True) -> Graph:
    """The graph in `root`; if it has several types of nodes, only the labelled nodes and the edges between them.

    Repeated edges count once, as in PyG's Reddit. Nothing is written outside `scratch`. Raises TaskError.
    """
    layout, raw, split = _layout_of(root), root / "raw", "split/*"
    with EdgeSpool(scratch) as spool:
        if layout == OGB_RELATIONS:
            counts = _node_counts(raw)
            kind = _labelled_type(raw, counts)
            nodes, split = counts[kind], f"split/*/{kind}"
            relations = [relation for relation in _edge_types(raw, counts) if relation[0] == relation[2] == kind]
            if not relations:
                raise bad_data(f"{root}: no relation between nodes of type {kind}", f"only {kind} nodes have labels")
            for relation in relations:
                _spool_lines(spool, raw / "relations" / "___".join(relation), nodes)
            features = text_rows(raw / "node-feat" / kind / "node-feat.csv.gz", np.float32)
            labels = text_rows(raw / "node-label" / kind / "node-label.csv.gz", np.float64, columns=1)
        elif layout == OGB_ARCHIVES:
            data = raw / "data.npz"
            nodes, edges = _one(data, "num_nodes_list", MOST_NODES), _one(data, "num_edges_list")
            _spool_array(spool, ArchivedArray(data, "edge_index"), nodes, edges)
            features = ArchivedArray(data, "node_feat").rows()
            labels = ArchivedArray(raw / "node-label.npz", "node_label").rows()
        else:
            nodes = _count(raw / "num-node-list.csv.gz", MOST_NODES)
            _spool_lines(spool, raw, nodes)
            features = text_rows(raw / "node-feat.csv.gz", np.float32)
            labels = text_rows(raw / "node-label.csv.gz", np.float64, columns=1)
    indptr, indices = adjacency(spool, nodes, nodes, undirected=undirected, shuffled=True)
    return Graph(indptr, indices, **_labelled(nodes, features, labels, _split_folder(root, split), scratch))


def _spool_lines(spool: EdgeSpool, folder: Path, nodes: int) -> None:
    """The edges in a folder, one a line."""
    path, edges, found = folder / "edge.csv.gz", _count(folder / "num-edge-list.csv.gz"), 0
    for piece in text_rows(path, np.int64, columns=2):
        _require_nodes(piece, nodes)
        spool.add_sources(piece.rows[:, 0])
        spool.add_targets(piece.rows[:, 1])
        found += len(piece.rows)
    _require_count(path, found, edges, "edges")


def _spool_array(spool: EdgeSpool, array: ArchivedArray, nodes: int, edges: int) -> None:
    """The edges in int64 [2, edges]: all sources, then all targets, or pairs if stored column by column."""
    name = f"{array.name} of {array.path}"
    if array.shape != (2, edges) or not np.issubdtype(array.dtype, np.integer):
        raise bad_data(f"{name} is {array.dtype} {[*array.shape]}, not int64 [2, {edges}]", _CORRECT)
    done = 0
    for values in array.values():
        numbers = values.astype(np.int64, copy=False)
        wrong = np.flatnonzero((numbers < 0) | (numbers >= nodes))
        if len(wrong):
            place = done + int(wrong[0])
            row, column = divmod(place, edges) if not array.by_column else divmod(place, 2)[::-1]
            message = f"{array.path}, {array.name}[{row}, {column}]: {numbers[wrong[0]]} is not a node"
            raise bad_data(message, _nodes_hint(nodes))
        sources = numbers[(done % 2) :: 2] if array.by_column else numbers[: max(0, edges - done)]
        targets = numbers[1 - (done % 2) :: 2] if array.by_column else numbers[max(0, edges - done) :]
        spool.add_sources(sources)
        spool.add_targets(targets)
        done += len(numbers)


def _labelled_type(raw: Path, nodes: dict[str, int]) -> str:
    """The only node type with labels."""
    found = sorted(path.parent.name for path in (raw / "node-label").glob("*/node-label.csv.gz"))
    if len(found) != 1 or found[0] not in nodes:
        message = f"{raw}/node-label has labels of {', '.join(found) or 'nothing'}"
        raise bad_data(message, f"exactly one of the types {', '.join(nodes)} must have labels")
    return found[0]


def _labelled(
    nodes: int, features: Iterable[FileRows], labels: Iterable[FileRows], split: Path, scratch: Path
) -> dict[str, Any]:
    """The fields of a `Graph` about its nodes: their features and classes, and the splits, ascending."""
    y = np.full(nodes, -1, dtype=np.int64)  # -1: a node without a label (NaN)
    found = 0
    for piece in labels:
        where, missing = piece.path, np.isnan(piece.rows)
        if piece.rows.shape[1] != 1:
            raise bad_data(f"{where} has {piece.rows.shape[1]} labels for each node", "a node has one class")
        whole = missing | ((piece.rows >= 0) & (piece.rows % 1 == 0))
        piece.require(whole, "is not a class", "classes are whole numbers from 0, and nan for a node without one")
        if found + len(piece.rows) <= nodes:
            y[found : found + len(piece.rows)] = np.where(missing, -1, piece.rows)[:, 0]
        found += len(piece.rows)
    _require_count(where, found, nodes, "nodes")
    if (y < 0).all():
        raise bad_data(f"{where} has no labels", _WHOLE)
    parts = []
    for name in _SPLITS:
        of_split = []
        for piece in text_rows(split / f"{name}.csv.gz", np.int64, columns=1):
            _require_nodes(piece, nodes)
            piece.require(y[piece.rows] >= 0, "is a node without a label", "remove it from the splits")
            of_split.append(piece.rows[:, 0])
        parts.append(torch.from_numpy(np.sort(np.concatenate(of_split))))
    train, val, test = parts
    classes = {"y": torch.from_numpy(y), "num_classes": int(y.max()) + 1}
    return {"x": _features(nodes, features, scratch / "features"), "train": train, "val": val, "test": test, **classes}


def _features(nodes: int, pieces: Iterable[FileRows], path: Path) -> Tensor:
    """float32 [nodes, features], memory-mapped from the file `path`, which is written here."""
    found = columns = 0
    with path.open("wb") as file:
        for piece in pieces:
            piece.require(np.isfinite(piece.rows), "is not a valid feature", "replace it with a number, such as 0")
            file.write(piece.rows.astype(np.float32, copy=False).tobytes())
            found, columns = found + len(piece.rows), piece.rows.shape[1]
            where = piece.path
    _require_count(where, found, nodes, "nodes")
    if not columns:
        raise bad_data(f"{where} has no features", _WHOLE)
    return torch.from_file(str(path), shared=True, size=nodes * columns, dtype=torch.float32).view(nodes, columns)


def _split_folder(root: Path, pattern: str) -> Path:
    found = sorted(path.parent for path in root.glob(f"{pattern}/train.csv.gz"))
    if len(found) != 1:
        names = ", ".join(str(path.relative_to(root)) for path in found) or "none"
        raise bad_data(
            f"expected one split in {root}/split, found {names}", "keep one folder with train, valid and test.csv.gz"
        )
    return found[0]


def _node_counts(raw: Path) -> dict[str, int]:
    path = raw / "num-node-dict.csv.gz"
    try:
        names, counts = text_words(path)
        return {
            name: _single(f"{path}, {name}", np.array([int(count)]), MOST_NODES)
            for name, count in zip(names, counts, strict=True)
        }
    except ValueError:
        raise bad_data(f"{path} is not a line of node types and a line of their counts", _CORRECT) from None


def _edge_types(raw: Path, nodes: dict[str, int]) -> list[EdgeType]:
    path = raw / "triplet-type-list.csv.gz"
    found = []
    for line, words in enumerate(text_words(path), start=1):
        if len(words) != 3 or not {words[0], words[2]} <= nodes.keys():
            hint = f"each line is SOURCE,RELATION,TARGET, with types {', '.join(nodes)}"
            raise bad_data(f"{path}, line {line}: {','.join(words)} is not a relation", hint)
        found.append((words[0], words[1], words[2]))
    return found


def _count(path: Path, most: int = _MOST_EDGES) -> int:
    """The number in a one-line file."""
    numbers = text_numbers(path)
    return _single(str(path), numbers, most)


def _one(path: Path, name: str, most: int = _MOST_EDGES) -> int:
    """The number in an array of one element."""
    return _single(f"{path}: {name}", next(ArchivedArray(path, name).rows()).rows.ravel(), most)


def _single(where: str, numbers: np.ndarray[Any, Any], most: int) -> int:
    if len(numbers) != 1:
        raise bad_data(f"{where} lists {len(numbers)} graphs", "a data set for node classification has one graph")
    if not 0 <= numbers[0] <= most:
        raise bad_data(f"{where}: {numbers[0]} is not from 0 to {most}", _CORRECT)
    return int(numbers[0])


def _require_nodes(piece: FileRows, nodes: int) -> None:
    """Raise TaskError unless all values are numbers of nodes."""
    piece.require((piece.rows >= 0) & (piece.rows < nodes), "is not a node", _nodes_hint(nodes))


def _nodes_hint(nodes: int) -> str:
    return f"nodes are numbered from 0 to {nodes - 1}"


def _require_count(path: Path, found: int, wanted: int, of_what: str) -> None:
    if found != wanted:
        raise bad_data(f"{path} has {found} rows for {wanted} {of_what}", _WHOLE)
