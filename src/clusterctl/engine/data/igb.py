"""IGB-heterogeneous, an academic graph of papers, authors, institutes and fields of study (fos): read, and generated.

The Illinois Graph Benchmark (Khatua et al., KDD 2023, arXiv 2302.13522) has it in five sizes. `processed` holds
features of each node type, 19 classes of papers, and edges as rows of two numbers. In its two largest sizes, features
and labels are raw numbers without numpy's header. Of the labelled papers, the first 60 % are for training, the next
20 % for validation and the rest for testing, as in its own loader.

Generated graphs have its layout, types, relations, features and classes at any scale. The numbers of nodes and edges of
each type are known for five sizes of the real graph; they are interpolated between these sizes, and proportional to the
papers below the smallest (`shared.spec.data_sizes`). The degree distributions are not published; the weights here are
lognormal. Every node has one of the 19 classes, which its features and most of its edges follow, and one paper in
twenty gets a random label.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from clusterctl.engine.data.edge_spool import EdgeSpool, adjacency
from clusterctl.engine.data.number_files import bad_data, states_of
from clusterctl.engine.data.reddit import HOMOPHILY, TRUTH_FILE, WRONG_LABELS, Population
from clusterctl.engine.graph.storage import LabelledHeteroGraph, Recipe
from clusterctl.shared.record.files import open_regular
from clusterctl.shared.spec.data_sizes import (
    IGB_CLASSES,
    IGB_EDGES,
    IGB_FEATURES,
    IGB_NODES,
    IGB_PAPERS,
    PAPER,
    igb_count,
    igb_papers,
)
from clusterctl.shared.spec.train import IGB_ARRAYS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterctl.engine.graph.storage import EdgeType

    Array = np.ndarray[Any, np.dtype[Any]]

NODE_TYPES, RELATIONS = tuple(IGB_NODES), tuple(IGB_EDGES)
CITES, WRITTEN_BY, AFFILIATED_TO, TOPIC = RELATIONS
FEATURES, CLASSES = IGB_FEATURES, IGB_CLASSES
ALL_PAPERS, LABELLED = IGB_PAPERS[-1], 227_130_858  # in the largest size, where the last papers have no label
SPLIT = (0.6, 0.8)  # where validation and test papers begin
_EDGES_AT_ONCE = 1 << 20
_WHOLE = "is the data set's folder complete?"


def is_here(root: str | Path) -> bool:
    """Whether the folder has any file of this layout."""
    return any((Path(root) / part).exists() for part in IGB_ARRAYS)


def raw_identity(root: str | Path) -> dict[str, Any]:
    """Identifies a data set: the location of its raw files, their sizes and times. Raises TaskError."""
    folder = Path(root).resolve()
    return {"root": str(folder), **states_of(folder, IGB_ARRAYS, _WHOLE)}


def recipe(root: str | Path, *, undirected: bool) -> Recipe[LabelledHeteroGraph]:
    """How to prepare the data set in `root`, once for all ranks and runs. Raises TaskError."""
    identity = raw_identity(root) | {"undirected": undirected}
    return Recipe("igb", identity, lambda scratch: read_raw(Path(identity["root"]), scratch, undirected=undirected))


def read_raw(root: Path, scratch: Path, *, undirected: bool = True) -> LabelledHeteroGraph:
    """All types of nodes and edges in `root`, and the reverse of each relation between different types.

    Repeated edges count once; `undirected` applies to citations. Nothing is written outside `scratch`. Raises
    TaskError.
    """
    folder = root / "processed"
    x = {kind: _table(folder / kind / "node_feat.npy", FEATURES) for kind in NODE_TYPES}
    counts = {kind: len(table) for kind, table in x.items()}
    indptr, indices = {}, {}
    for relation in RELATIONS:
        for edge_type, (first, second) in ((relation, (0, 1)), (reverse(relation), (1, 0))):
            source, _, target = edge_type
            if edge_type not in indptr:
                with EdgeSpool(scratch) as spool:
                    for piece in _edges(folder / "__".join(relation) / "edge_index.npy", relation, counts):
                        spool.add_sources(piece[:, first])
                        spool.add_targets(piece[:, second])
                indptr[edge_type], indices[edge_type] = adjacency(
                    spool, counts[target], counts[source], undirected=undirected and source == target, shuffled=False
                )
    path = folder / PAPER / "node_label_19.npy"
    values = _table(path, 1)[:, 0]
    if len(values) != counts[PAPER]:
        raise bad_data(f"{path} has {len(values)} labels for {counts[PAPER]} papers", _WHOLE)
    y = torch.where(values.isfinite() & (values >= 0), values, -1).long()  # -1: a paper without a label
    if counts[PAPER] == ALL_PAPERS:
        y[LABELLED:] = -1
    if int(y.max()) >= CLASSES or int(y.max()) < 0:
        raise bad_data(f"{path} has classes up to {int(y.max())}", f"they are numbered from 0 to {CLASSES - 1}")
    known = (y >= 0).nonzero().squeeze(1)
    train, val, test = known.tensor_split([round(share * known.numel()) for share in SPLIT])
    return LabelledHeteroGraph(counts, indptr, indices, x, PAPER, y, train, val, test, CLASSES)


def reverse(relation: EdgeType) -> EdgeType:
    """The reverse relation; a relation between nodes of one type is its own reverse."""
    source, name, target = relation
    return relation if source == target else (target, f"rev_{name}", source)


def _table(path: Path, columns: int) -> Tensor:
    """The float32 [rows, columns] in a file, memory-mapped, with or without numpy's header."""
    try:
        with open_regular(path) as file:
            has_header = file.read(6) == b"\x93NUMPY"
        # Copy on write, because torch warns about read-only arrays. Nothing is written.
        array = np.load(path, mmap_mode="c") if has_header else np.memmap(path, np.float32, "c")
        rows = array.reshape(-1, columns)
    except (OSError, ValueError) as error:
        raise bad_data(f"cannot read {path} as rows of {columns} numbers: {error}", _WHOLE) from error
    return torch.from_numpy(rows if rows.dtype == np.float32 else rows.astype(np.float32))


def _edges(path: Path, relation: EdgeType, counts: dict[str, int]) -> Iterator[Array]:
    """The edges of a relation in chunks, int64 [edges, 2]."""
    try:
        array = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise bad_data(f"cannot read {path}: {error}", _WHOLE) from error
    if array.ndim != 2 or array.shape[1] != 2:
        raise bad_data(f"{path} is an array {[*array.shape]}", "edges are rows of two numbers")
    limits = np.array([counts[relation[0]], counts[relation[2]]])
    for start in range(0, len(array), _EDGES_AT_ONCE):
        piece = np.asarray(array[start : start + _EDGES_AT_ONCE], dtype=np.int64)
        wrong = ((piece < 0) | (piece >= limits)).any(1)
        if wrong.any():
            row = int(wrong.argmax())
            hint = f"there are {limits[0]} nodes of type {relation[0]} and {limits[1]} of type {relation[2]}"
            raise bad_data(f"{path}, row {start + row}: {piece[row].tolist()} is not an edge", hint)
        yield piece


BEST_ACCURACY = 1 - WRONG_LABELS * (1 - 1 / CLASSES)  # if every class is known, but not which labels are wrong
_SIGMA, _SIGNAL = 1.0, 0.15
_NODES_AT_ONCE = 1 << 14


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
    _write_nodes(folder / "processed", nodes, random)
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


def _write_nodes(folder: Path, nodes: dict[str, NodesOfAType], random: torch.Generator) -> None:
    """Write the features of all nodes, around the centre of each one's class, and the labels of the papers."""
    for kind, own in nodes.items():
        centres = torch.randn(CLASSES, FEATURES, generator=random).mul_(_SIGNAL)  # every node type has its own
        rows = _created(folder / kind / "node_feat.npy", np.float32, (own.classes.numel(), FEATURES))
        for start in range(0, own.classes.numel(), _NODES_AT_ONCE):
            part = own.classes[start : start + _NODES_AT_ONCE]
            rows[start : start + len(part)] = torch.randn(len(part), FEATURES, generator=random).add_(centres[part])
    classes = nodes[PAPER].classes
    wrong = torch.rand(classes.numel(), generator=random) < WRONG_LABELS
    others = torch.randint(CLASSES, classes.shape, generator=random)
    labels = torch.where(wrong, others, classes).to(torch.float32)
    if classes.numel() == ALL_PAPERS:
        labels[LABELLED:] = torch.nan
    _created(folder / PAPER / "node_label_19.npy", np.float32, tuple(labels.shape))[:] = labels


def _created(path: Path, kind: type, shape: tuple[int, ...]) -> Any:
    """A memory-mapped array in a new file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=shape)
