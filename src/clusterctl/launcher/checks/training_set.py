"""How many examples a job trains on, as far as that is visible without torch or a prepared data set."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

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
from clusterctl.shared.spec.data_sizes import TAOBAO_EVENTS, igb_papers

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


def once(count: Callable[[Path], Counted], file: Path) -> Counted:
    """The result of `count` for `file`, cached: the checks, a status line and further submissions need it."""
    status = file.stat()
    found: Counted = _counted(
        count, file, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    )
    return found


@lru_cache(16)
def _counted(count: Callable[[Path], Any], file: Path, _: tuple[int, ...]) -> Any:
    return count(file)


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
