"""Reddit: one graph in the raw format of PyG's Reddit data set, read by PyG's class, and graphs like it at any scale.

Generated graphs have Reddit's degrees, features, classes and homophily, and a share of labels that are wrong: lognormal
degrees with mean 491 (sigma 1.06, at most 21,657), 602 features around the class's centre, 41 classes, and 70 % of the
edges from nodes of the same class; sources are drawn in proportion to their degrees. Otherwise edges are random, so
caches behave differently on the real graph. One label in twenty is drawn at random from all classes, which no model can
predict: this bounds the accuracy.
"""

from __future__ import annotations

import json
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from clusterctl.engine.data.number_files import folder_of, states_of
from clusterctl.engine.graph.storage import Graph, Recipe, compressed
from clusterctl.shared.errors import Cause, TaskError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


RAW_FILES = ("reddit_data.npz", "reddit_graph.npz")


def raw_identity(root: str | Path | None) -> dict[str, Any]:
    """Identifies a data set: the location of its raw files, their sizes and times. Raises TaskError."""
    hint = f"set data.root to a folder with {' and '.join(f'raw/{name}' for name in RAW_FILES)}"
    folder = folder_of(root, hint)
    return {"root": str(folder), **states_of(folder / "raw", RAW_FILES, hint)}


def recipe(root: str | Path | None) -> Recipe[Graph]:
    """How to prepare the data set in `root`, once for all ranks, runs and workloads. Raises TaskError."""
    identity = raw_identity(root)
    return Recipe("reddit", identity, lambda scratch: read_raw(Path(identity["root"]), scratch))


def read_raw(root: Path, scratch: Path) -> Graph:
    """Read the data set with PyG's class, but without writing next to the raw files, which may be read-only."""
    from torch_geometric.datasets import Reddit  # takes 1.6 s, and only one rank needs it

    class RawReddit(Reddit):  # type: ignore[misc]
        @property
        def processed_dir(self) -> str:
            return str(scratch)

    try:
        data = RawReddit(str(root))[0]
        shapes = {name: tuple(data[name].shape) for name in ("x", "y", "train_mask")}
        if shapes["y"] != shapes["x"][:1] or shapes["train_mask"] != shapes["x"][:1] or len(shapes["x"]) != 2:
            raise ValueError(f"features, labels and splits of shapes {', '.join(map(str, shapes.values()))}")
    except (OSError, EOFError, ValueError, KeyError, IndexError, TypeError, RuntimeError, BadZipFile) as error:
        message = f"cannot read {root} as a Reddit data set: {error}"
        raise TaskError(message, "are the raw files complete?", Cause.DATA) from error
    if int(data.y[data.train_mask | data.val_mask | data.test_mask].min()) < 0:
        message = f"cannot read {root} as a Reddit data set: a node in a split has no label"
        raise TaskError(message, "remove it from the splits", Cause.DATA)
    return Graph(
        *compressed(data.edge_index, data.num_nodes, shuffled=True),
        x=data.x,
        y=data.y,
        train=data.train_mask.nonzero().squeeze(1),
        val=data.val_mask.nonzero().squeeze(1),
        test=data.test_mask.nonzero().squeeze(1),
        num_classes=int(data.y.max()) + 1,
    )


HOMOPHILY, WRONG_LABELS = 0.7, 0.05
TRUTH_FILE = "truth.json"  # next to `raw`
_SIGMA, _NOISE = 1.06, 6.0
_EDGES_AT_ONCE, _NODES_AT_ONCE = 1 << 22, 1 << 14


class Shape(NamedTuple):
    """The properties of the real data set."""

    nodes: int
    degree: float  # average
    features: int
    classes: int
    largest: int  # degree
    split: tuple[float, float]  # cumulative shares at which validation and test nodes begin

    @property
    def best_accuracy(self) -> float:
        """The accuracy of a model that knows every class, but not which labels are wrong."""
        return 1 - WRONG_LABELS * (1 - 1 / self.classes)


REDDIT = Shape(232_965, 491, 602, 41, largest=21_657, split=(0.66, 0.76))
BEST_ACCURACY = REDDIT.best_accuracy


@dataclass(frozen=True)
class Community:
    """The ground truth of the graph."""

    degree: Tensor  # int64 [nodes]
    weights: Tensor  # float64 [nodes]; sources are drawn in proportion
    classes: Tensor  # int64 [nodes]; features and edges follow them
    labels: Tensor  # int64 [nodes]; some are wrong
    centres: Tensor  # float [classes, features]
    parts: tuple[Tensor, Tensor, Tensor]  # int64, ascending: training, validation and test nodes
    random: torch.Generator


def community(scale: float, seed: int, shape: Shape = REDDIT) -> Community:
    """`scale` times the nodes of the real data set, and the same average degree."""
    random = torch.Generator().manual_seed(seed)
    nodes = max(shape.classes, round(shape.nodes * scale))
    weights = torch.randn(nodes, generator=random, dtype=torch.float64).mul_(_SIGMA).exp_()
    weights *= shape.degree / weights.mean()
    classes = torch.randint(shape.classes, (nodes,), generator=random)
    classes[: shape.classes] = torch.arange(shape.classes)  # no class is empty
    wrong = torch.rand(nodes, generator=random) < WRONG_LABELS
    others = torch.randint(shape.classes, (nodes,), generator=random)
    order = torch.randperm(nodes, generator=random)
    train, val, test = (
        part.sort().values for part in order.tensor_split([round(share * nodes) for share in shape.split])
    )
    return Community(
        degree=weights.clamp(1, min(shape.largest, nodes - 1)).to(torch.int64),
        weights=weights,
        classes=classes,
        labels=torch.where(wrong, others, classes),
        centres=torch.randn(shape.classes, shape.features, generator=random),
        parts=(train, val, test),
        random=random,
    )


def reddit_like(scale: float, seed: int = 0) -> Graph:
    """The graph itself; neighbours are unordered, and some are repeated."""
    truth = community(scale, seed)
    x = torch.cat([*features(truth)])
    indptr = torch.cat([truth.degree.new_zeros(1), truth.degree.cumsum(0)])
    return Graph(indptr, torch.cat([*sources(truth)]), x, truth.labels, *truth.parts, num_classes=REDDIT.classes)


def write(folder: Path, scale: float, seed: int, progress: Callable[[int, int], None] = lambda *_: None) -> float:
    """Write the raw files and the truth into `folder`; returns the best possible accuracy.

    Memory grows with the nodes, but not with their features or the edges. `progress` is called with the edges done.
    """
    truth = community(scale, seed)
    nodes, edges = truth.degree.numel(), int(truth.degree.sum())
    split = torch.empty(nodes, dtype=torch.int64)
    for number, part in enumerate(truth.parts, start=1):
        split[part] = number
    data, graph = (folder / "raw" / name for name in RAW_FILES)
    data.parent.mkdir(parents=True, exist_ok=True)
    with ArchiveWriter(data) as archive:
        archive.put("feature", np.float32, (nodes, REDDIT.features), features(truth))
        archive.put("label", np.int64, (nodes,), [truth.labels])
        archive.put("node_types", np.int64, (nodes,), [split])
    with ArchiveWriter(graph) as archive:  # a scipy.sparse.coo_array, as PyG reads it
        archive.put("row", np.int32, (edges,), sources(truth), progress)
        archive.put("col", np.int32, (edges,), targets(truth, torch.int32))
        archive.put("data", np.uint8, (edges,), (torch.ones_like(part) for part in targets(truth, torch.uint8)))
        archive.put("shape", np.int64, (2,), [torch.tensor([nodes, nodes])])
        archive.put("format", np.dtype("S3"), (), [np.array(b"coo")])
    (folder / TRUTH_FILE).write_text(json.dumps({"best_accuracy": BEST_ACCURACY, "scale": scale, "seed": seed}) + "\n")
    return BEST_ACCURACY


def features(truth: Community) -> Iterator[Tensor]:
    """The features of all nodes in chunks, float [nodes, features]."""
    width = truth.centres.size(1)
    for classes in torch.split(truth.classes, _NODES_AT_ONCE):
        noise = torch.randn(classes.numel(), width, generator=truth.random)
        yield truth.centres[classes] + _NOISE * noise


def targets(truth: Community, dtype: torch.dtype = torch.int64) -> Iterator[Tensor]:
    """The targets of all edges in chunks."""
    bounds = truth.degree.cumsum(0)
    for first in range(0, int(bounds[-1]), _EDGES_AT_ONCE):
        edges = torch.arange(first, min(first + _EDGES_AT_ONCE, int(bounds[-1])))
        yield torch.searchsorted(bounds, edges, right=True).to(dtype)


def sources(truth: Community) -> Iterator[Tensor]:
    """The sources of all edges in chunks, sorted by target."""
    population = Population(truth.weights, truth.classes, truth.centres.size(0))
    for piece in targets(truth):
        yield population.drawn(truth.classes[piece], HOMOPHILY, truth.random).to(torch.int32)


# Write the arrays of a .npz archive in chunks.


class ArchiveWriter:
    """Writes the archive without compression, like numpy.savez."""

    def __init__(self, path: Path) -> None:
        self._archive = zipfile.ZipFile(path, "w")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def put(
        self,
        name: str,
        kind: np.dtype[Any] | type,
        shape: tuple[int, ...],
        parts: Iterable[Tensor | np.ndarray[Any, Any]],
        progress: Callable[[int, int], None] = lambda *_: None,
    ) -> None:
        """Write an array from its parts, in order."""
        header = {"descr": np.dtype(kind).str, "fortran_order": False, "shape": shape}
        with self._archive.open(f"{name}.npy", "w", force_zip64=True) as file:
            np.lib.format.write_array_header_2_0(file, header)
            written = 0
            for part in parts:
                array = np.asarray(part, dtype=kind)
                file.write(array.tobytes())
                written += array.size
                progress(written, math.prod(shape))
        assert written == math.prod(shape)


# Nodes with classes and weights, from which the ends of edges are drawn.


class Population:
    """Draws nodes in proportion to their weights: from all nodes, or from a class."""

    def __init__(self, weights: Tensor, classes: Tensor, num_classes: int) -> None:
        self._order = classes.argsort(stable=True)  # the nodes of a class are contiguous
        self._line = weights[self._order].cumsum(0)
        self._ends = self._line[classes.bincount(minlength=num_classes).cumsum(0) - 1]
        self._begins = torch.cat([self._ends.new_zeros(1), self._ends[:-1]])

    def drawn(self, classes: Tensor, homophily: float, random: torch.Generator) -> Tensor:
        """int64: a node for each of these classes, with probability `homophily` one of that class, else any.

        Draws a position in the cumulative weights of all nodes, or of the class.
        """
        position = torch.rand(classes.numel(), generator=random, dtype=torch.float64)
        alike = torch.rand(classes.numel(), generator=random) < homophily
        low = torch.where(alike, self._begins[classes], 0.0)
        high = torch.where(alike, self._ends[classes], self._ends[-1])
        places = torch.searchsorted(self._line, low + position * (high - low)).clamp_(max=self._order.numel() - 1)
        return self._order[places]
