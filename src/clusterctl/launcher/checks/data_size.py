"""The size of the data set that a built-in training reads, and how many examples it trains on, without torch.

As far as the login node can tell: from the headers of its files, or from the numbers in the job for generated data.
Counts that only the tasks can determine, such as of classes in a large file, are estimates.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, TypeVar

from clusterctl.shared.record.files import open_regular
from clusterctl.shared.spec import (
    Batches,
    GraphClassificationTrain,
    LoopTrain,
    NodeClassificationTrain,
    NodeTrain,
    SyntheticTrain,
    TaobaoTrain,
    TrainingSet,
)
from clusterctl.shared.spec.data_sizes import (
    IGB_CLASSES,
    IGB_EDGES,
    IGB_FEATURES,
    IGB_NODES,
    TAOBAO_EVENTS,
    TAOBAO_ITEMS,
    TAOBAO_USERS,
    igb_count,
    igb_papers,
)
from clusterctl.shared.spec.train import IGB_ARRAYS, OGB_ARCHIVES, OGB_TABLES, likeliest

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.shared.spec import Job


_MOST_BYTES = 1 << 25  # read here: 4 million nodes
_SAMPLE_BYTES = 1 << 16
Counted = TypeVar("Counted")
_TRAIN = 1  # PyG's code in node_types
_CODES: dict[bytes, Literal["b", "h", "i", "q"]] = {b"1": "b", b"2": "h", b"4": "i", b"8": "q"}  # of the struct module


def batches(job: Job) -> Batches | None:
    """How `job` divides its examples into batches; None for a user's own program."""
    found = shares(job)
    return found and replace(found, examples=training_set(job))


def shares(job: Job) -> Batches | None:
    """Like `batches`, without reading the data set."""
    if not isinstance(job.train, LoopTrain):
        return None
    return Batches(job.train, job.resources.nodes * (job.resources.tasks_per_node or 1))


def training_set(job: Job) -> TrainingSet | None:
    """The training set of `job`; None if only the tasks can determine it, or if its files are missing or damaged."""
    root = None if job.data.root is None else Path(job.data.root)
    try:
        match job.train:
            case SyntheticTrain(avg_num_nodes=nodes):  # FakeDataset draws from 3/4 to 5/4 of it; 60 % are for training
                return TrainingSet(nodes * 6 // 10, "nodes", exact=False)
            case NodeClassificationTrain(batch="clusters", clusters=clusters, clusters_per_subgraph=together):
                return TrainingSet(-(-clusters // together), "subgraphs", exact=False)  # fewer if some are empty
            case NodeClassificationTrain(generated=scale) if scale and not (root or job.data.load):
                return TrainingSet(igb_papers(scale) * 6 // 10, "nodes", exact=False)
            case NodeTrain() if root and (raw := root / "raw" / "reddit_data.npz").exists():
                return TrainingSet(once(_marked_nodes, raw), "nodes")
            case NodeTrain() if root:  # in the layout of the Open Graph Benchmark
                splits = (root / "split").glob
                (split,) = (path for pattern in ("*", "*/*") for path in splits(f"{pattern}/train.csv.gz"))
                return TrainingSet(once(count_lines, split), "nodes")
            case GraphClassificationTrain() if root:
                (labels,) = (root / "raw").glob("*_graph_labels.txt")
                graphs = once(count_lines, labels)
                # Without the first fold's test and validation parts, the two largest of ten; other folds have at most
                # one more.
                return TrainingSet(graphs - -(-graphs // 10) - -(-(graphs - 1) // 10), "graphs")
            case TaobaoTrain(generated=scale) if root or scale:  # 80 % of the pairs are for training
                real = root and root / "raw" / "UserBehavior.csv"
                events = once(about_as_many_lines, real) if real else round(TAOBAO_EVENTS * scale)
                return TrainingSet(events * 8 // 10, "edges", exact=False)
    except (OSError, ValueError, KeyError):
        pass  # `data_rules` reports missing files, and the tasks report damaged ones
    return None


def once(count: Callable[..., Counted], file: Path, *more: str) -> Counted:
    """The result of `count` for `file`, cached: the checks, a status line and further submissions need it."""
    status = file.stat()
    found: Counted = _counted(
        count, file, more, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    )
    return found


@lru_cache(16)
def _counted(count: Callable[..., Any], file: Path, more: tuple[str, ...], _: tuple[int, ...]) -> Any:
    return count(file, *more)


def count_lines(path: Path) -> int:
    """The number of lines with one number each, in a compressed file or not."""
    import gzip
    import zlib

    try:
        with open_regular(path) as file, gzip.open(file) if path.suffix == ".gz" else file as lines:
            content = lines.read(_MOST_BYTES + 1)
    except (EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged") from error
    if len(content) > _MOST_BYTES:
        raise ValueError("too many to count here")
    return len(content.split())


def _marked_nodes(archive: Path) -> int:
    """The number of nodes marked for training in node_types.npy, an array of integers (numpy.lib.format)."""
    import zipfile
    import zlib

    try:
        with open_regular(archive) as file, zipfile.ZipFile(file) as members, members.open("node_types.npy") as array:
            version = array.read(8)[6:7]
            header = array.read(int.from_bytes(array.read(2 if version == b"\x01" else 4), "little"))
            content = array.read(_MOST_BYTES + 1)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(f"{archive} is damaged") from error
    kind = re.search(rb"'descr': '[|<][iu]([1248])'", header)
    if kind is None or len(content) > _MOST_BYTES:
        raise ValueError("not an array of little-endian integers, or too large to count here")
    return memoryview(content).cast(_CODES[kind[1]]).tolist().count(_TRAIN)


def about_as_many_lines(path: Path) -> int:
    """An estimate of the number of lines, from the mean length of the first ones."""
    with open_regular(path) as file:
        sample = file.read(_SAMPLE_BYTES)
    return path.stat().st_size * sample.count(b"\n") // max(1, len(sample))


EdgeType = tuple[str, str, str]
_FAKE_FEATURES, _FAKE_CLASSES, _FAKE_DEGREE = 64, 10, 10  # PyG's FakeDataset
_DEGREES = 128  # columns of the one-hot degree
_CLASSES = 64  # assumed where no header shows it
_TOGETHER = 250  # neighbours of an item, as in small generated data; no more than the fan-out of them counts
_MOST_HEADER = 1 << 16
_MOST = 1 << 48


@dataclass(frozen=True)
class DataSize:
    """The nodes of each type, the edges into them in both directions, and the columns of features.

    The only type of a homogeneous graph is "". For graphs to classify, `graphs` is their number.
    """

    nodes: dict[str, int]
    edges: dict[EdgeType, int]
    features: int
    classes: int
    graphs: int = 0
    raw: str = field(default="", compare=False)  # the layout that has to be prepared

    @property
    def num_nodes(self) -> int:
        return sum(self.nodes.values())

    @property
    def num_edges(self) -> int:
        return sum(self.edges.values())


def data_size(job: Job) -> DataSize | None:
    """The sizes of the data set of `job`; None if only the tasks can tell, or if files are missing or damaged."""
    root = None if job.data.root is None else Path(job.data.root)
    if job.data.load:
        return None
    try:
        match job.train:
            case SyntheticTrain(avg_num_nodes=about, seed=seed):
                import random  # takes 5 ms

                # PyG's FakeDataset draws the number of nodes first, from the seeded generator of Python.
                about = max(about, _FAKE_DEGREE)
                nodes = random.Random(seed).randint(max(3 * about // 4, _FAKE_DEGREE), 5 * about // 4)
                return one_type(nodes, 2 * _FAKE_DEGREE * nodes, _FAKE_FEATURES, _FAKE_CLASSES, "fake")
            case NodeClassificationTrain(model="rgat", generated=scale) if root is None and scale:
                return _igb({kind: igb_count(counts, igb_papers(scale)) for kind, counts in IGB_NODES.items()}, {
                    kind: igb_count(counts, igb_papers(scale)) for kind, counts in IGB_EDGES.items()
                }, undirected=job.data.undirected)  # fmt: skip
            case NodeClassificationTrain(model="rgat") if root:
                return _igb_files(root, undirected=job.data.undirected)
            case NodeTrain() | NodeClassificationTrain() if root and (raw := root / "raw" / "reddit_data.npz").exists():
                nodes, features = once(_shape_in, raw, "feature.npy")
                (edges,) = once(_shape_in, root / "raw" / "reddit_graph.npz", "row.npy")
                return one_type(nodes, edges, features, _CLASSES, "reddit")
            case NodeTrain() | NodeClassificationTrain() if root:
                return _ogb(root, undirected=job.data.undirected)
            case GraphClassificationTrain(features=kind) if root:
                return _collection(root, kind)
            case TaobaoTrain() if examples := training_set(job):
                return _shop(examples.size)
    except (OSError, ValueError, KeyError):
        pass  # `data_rules` reports missing files, and the tasks report damaged ones
    return None


def one_type(nodes: int, edges: int, features: int, classes: int, raw: str = "") -> DataSize:
    """The size of a homogeneous graph."""
    return DataSize({"": nodes}, {("", "", ""): edges}, features, classes, raw=raw)


def _igb(nodes: dict[str, int], edges: dict[EdgeType, int], *, undirected: bool) -> DataSize:
    """Each relation and its reverse; citations count in both directions if they are undirected."""
    both = {}
    for (source, name, target), count in edges.items():
        if source == target:
            both[source, name, target] = 2 * count if undirected else count
        else:
            both[source, name, target] = both[target, f"rev_{name}", source] = count
    return DataSize(nodes, both, IGB_FEATURES, IGB_CLASSES, raw="igb")


def _igb_files(root: Path, *, undirected: bool) -> DataSize:
    missing = [part for part in IGB_ARRAYS if not (root / part).exists()]
    if missing:
        raise ValueError(f"no {missing[0]}")
    processed = root / "processed"
    nodes = {kind: (processed / kind / "node_feat.npy").stat().st_size // (4 * IGB_FEATURES) for kind in IGB_NODES}
    edges = {}
    for relation in IGB_EDGES:
        with open_regular(processed / "__".join(relation) / "edge_index.npy") as file:
            edges[relation] = _shape(file)[0]
    return _igb(nodes, edges, undirected=undirected)


def _ogb(root: Path, *, undirected: bool) -> DataSize:
    """The tables or the archives of the Open Graph Benchmark; several types of nodes are left to the tasks."""
    raw = root / "raw"
    layout = likeliest((OGB_TABLES, OGB_ARCHIVES), root)
    if any(not any(root.glob(part)) for part in layout):
        raise ValueError("another layout, or not complete")
    if layout == OGB_ARCHIVES:
        nodes, features = _shape_in(raw / "data.npz", "node_feat.npy")
        edges = max(_shape_in(raw / "data.npz", "edge_index.npy"))
    else:
        counts = [_beginning(raw / f"num-{kind}-list.csv.gz").split() or [b"nothing"] for kind in ("node", "edge")]
        nodes, edges = (min(_MOST, int(numbers[0])) for numbers in counts)
        features = _beginning(raw / "node-feat.csv.gz").partition(b"\n")[0].count(b",") + 1
    return one_type(nodes, 2 * edges if undirected else edges, features, _CLASSES, "ogb")


def _collection(root: Path, kind: str) -> DataSize:
    """A TU data set: text files with a line for each graph, node and edge."""
    (edges,) = (root / "raw").glob("*_A.txt")
    name = edges.name.removesuffix("_A.txt")
    graphs = once(count_lines, root / "raw" / f"{name}_graph_labels.txt")
    nodes = _lines(root / "raw" / f"{name}_graph_indicator.txt")
    features = {"ones": 1, "given": 32}.get(kind, _DEGREES)
    return DataSize({"": nodes}, {("", "", ""): _lines(edges, numbers=2)}, features, 2, graphs=graphs, raw="tu")


def _shop(examples: int) -> DataSize:
    """Users and items in the proportions of Taobao's data, and the training events; few items have no neighbours."""
    scale = examples / (0.8 * TAOBAO_EVENTS)
    users, items = (max(4, round(count * scale)) for count in (TAOBAO_USERS, TAOBAO_ITEMS))
    edges = {("item", "rev_to", "user"): examples, ("item", "to", "item"): _TOGETHER * items}
    return DataSize({"user": users, "item": items}, edges, 0, 2, raw="taobao")


def _lines(path: Path, numbers: int = 1) -> int:
    """The lines of so many numbers; if there are too many to count, about as many."""
    try:
        return once(count_lines, path) // numbers
    except ValueError:
        return once(about_as_many_lines, path)


def _beginning(path: Path) -> bytes:
    """The first part of a compressed text."""
    import gzip
    import zlib

    try:
        with open_regular(path) as file, gzip.open(file) as text:
            return text.read(_MOST_HEADER)
    except (EOFError, zlib.error) as error:
        raise ValueError(f"{path} is damaged") from error


def _shape_in(archive: Path, member: str) -> tuple[int, ...]:
    """The shape of an array in an archive of numpy."""
    import zipfile
    import zlib

    try:
        with open_regular(archive) as file, zipfile.ZipFile(file) as members, members.open(member) as array:
            return _shape(array)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(f"{archive} is damaged") from error


def _shape(array: IO[bytes]) -> tuple[int, ...]:
    """The shape in the header of an array of numpy (numpy.lib.format)."""
    version = array.read(8)[6:7]
    length = int.from_bytes(array.read(2 if version == b"\x01" else 4), "little")
    found = re.search(rb"'shape': \((\d+,[\d, ]*)\)", array.read(min(length, _MOST_HEADER)))
    if found is None:
        raise ValueError("not an array of numpy")
    shape = tuple(int(number) for number in found[1].split(b",") if number.strip())
    if max(shape) > _MOST:
        raise ValueError("not the size of a data set")
    return shape


def distinct(drawn: float, among: int, *, alike: bool = False) -> float:
    """How many different ones of `among` nodes are expected in `drawn` random neighbours.

    Unless all nodes are `alike`, their degrees count as exponentially distributed: most have few, and some have many.
    """
    if not among:
        return 0.0
    share = drawn / among
    return among * (-math.expm1(-share) if alike else share / (1 + share))
