"""Arrays that all ranks of a node share: one memory-mapped file, so a node holds one copy for any number of ranks.

Ranks import only torch. The code that reads the data set's own format runs once, when it is prepared (`record.once`).
The file has a checksum of each array, which one rank per node verifies when a run opens it; a damaged file is rebuilt.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from contextlib import contextmanager
from dataclasses import Field, dataclass, field, fields, replace
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from clusterctl.engine.graph.blocks import Adjacency
from clusterctl.engine.graph.hashing import Purpose, draws, stream
from clusterctl.engine.task.heap import give_back
from clusterctl.shared.errors import Cause, TaskError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from clusterctl.engine.task.task import Task

EdgeType = tuple[str, str, str]
"""The type of the source, the name of the relation, the type of the target, as in PyG."""


class Stored(Protocol):
    """A dataclass of tensors and numbers: a Graph, a Collection."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


T = TypeVar("T", bound="Stored")

FORMAT = 4  # of the prepared files; part of the folder's name
FILE = "graph.pt"
_ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class FeatureGraph(Adjacency):
    """A graph of one node type, with node features."""

    x: Tensor  # float [nodes, features]

    @property
    def num_nodes(self) -> int:
        return self.indptr.numel() - 1

    @property
    def num_features(self) -> int:
        return self.x.size(1)


@dataclass(frozen=True)
class Graph(FeatureGraph):
    """A graph with answers and splits of its nodes.

    Graphs prepared by workloads list the sources of each target in one random order of all nodes, for `labor`.
    """

    y: Tensor  # classes, int64 [nodes]; or numbers, float [nodes, outputs], NaN where there is none
    train: Tensor  # int64, ascending, as `val` and `test`
    val: Tensor
    test: Tensor
    num_classes: int  # or outputs
    numbers: Tensor | None = None  # int32 [nodes]: the user's number of each node, if the nodes are in another order
    edge_weight: Tensor | None = None  # float [edges], in the order of `indices`
    edge_attr: Tensor | None = None  # float [edges] or [edges, channels], likewise


def numbered(graph: Adjacency, places: Tensor) -> Tensor:
    """The user's numbers of nodes at these places, int64."""
    numbers: Tensor | None = getattr(graph, "numbers", None)
    return places if numbers is None else numbers.index_select(0, places).to(torch.int64)


G = TypeVar("G", bound=FeatureGraph)


@dataclass(frozen=True)
class HeteroGraph:
    """Nodes and edges of several types: an `Adjacency` per relation, and features for the node types that have any."""

    num_nodes: dict[str, int]
    indptr: dict[EdgeType, Tensor]
    indices: dict[EdgeType, Tensor]
    x: dict[str, Tensor]  # float [nodes, features]
    edge_times: dict[EdgeType, Tensor] = field(default_factory=dict, kw_only=True)
    """When each edge begins to be seen: of this edge and of its source, the later time; ascending for each target."""
    node_times: dict[str, Tensor] = field(default_factory=dict, kw_only=True)  # [nodes], of the types that have times
    edge_weight: dict[EdgeType, Tensor] = field(default_factory=dict, kw_only=True)  # as in `Graph`, where there is one
    edge_attr: dict[EdgeType, Tensor] = field(default_factory=dict, kw_only=True)

    @property
    def is_temporal(self) -> bool:
        """Whether examples see only what is not later than they are."""
        return bool(self.edge_times)

    @property
    def has_edge_numbers(self) -> bool:
        """Whether any edges have weights or attributes."""
        return bool(self.edge_weight or self.edge_attr)

    def relation(self, edge_type: EdgeType) -> Adjacency:
        """The edges of this type."""
        return Adjacency(self.indptr[edge_type], self.indices[edge_type])

    def to(self, device: torch.device, dtype: torch.dtype) -> Self:
        """The graph on `device` with features of `dtype`; tensors that already match are not copied."""
        return replace(
            self,
            indptr={edge_type: indptr.to(device) for edge_type, indptr in self.indptr.items()},
            indices={edge_type: indices.to(device) for edge_type, indices in self.indices.items()},
            x={node_type: x.to(device, dtype) for node_type, x in self.x.items()},
            edge_times={edge_type: times.to(device) for edge_type, times in self.edge_times.items()},
            node_times={node_type: times.to(device) for node_type, times in self.node_times.items()},
            edge_weight={edge_type: values.to(device) for edge_type, values in self.edge_weight.items()},
            edge_attr={edge_type: values.to(device) for edge_type, values in self.edge_attr.items()},
        )


H = TypeVar("H", bound=HeteroGraph)


@dataclass(frozen=True)
class LabelledHeteroGraph(HeteroGraph):
    """A heterogeneous graph with answers of the nodes of one type, and splits.

    The examples are these nodes, or rows of a table that name a node, and perhaps a time, for each answer.
    """

    node_type: str  # the type of the nodes with answers
    y: Tensor  # of the examples: classes, int64 [examples]; or numbers, float [examples, outputs]
    train: Tensor  # int64, ascending, as `val` and `test`: examples
    val: Tensor
    test: Tensor
    num_classes: int  # or outputs
    seed_nodes: Tensor | None = field(default=None, kw_only=True)  # int64 [examples]: the node of each, if it has any
    seed_times: Tensor | None = field(default=None, kw_only=True)  # [examples]: the time up to which each sees

    def nodes_of(self, examples: Tensor) -> Tensor:
        """The node of each of these examples, int64."""
        return examples if self.seed_nodes is None else self.seed_nodes.index_select(0, examples)


def resident(graph: G, task: Task, dtype: torch.dtype) -> G:
    """The graph on the task's device with features of `dtype`; on the CPU there is one copy per node.

    A collective of the node's ranks.
    """
    return replace(graph, **_moved(graph, task), x=_resident_features(graph.x, task, dtype))


def resident_relations(graph: H, task: Task, dtype: torch.dtype) -> H:
    """Like `resident`, for a graph with several types."""
    x = {node_type: _resident_features(x, task, dtype) for node_type, x in graph.x.items()}
    moved: dict[str, Any] = {
        name: {kind: array.to(task.device) for kind, array in arrays.items()}
        for name, arrays in _record(graph).items()
        if isinstance(arrays, dict) and name not in ("num_nodes", "x")
    }
    return replace(graph, **_moved(graph, task), **moved, x=x)


def _moved(graph: Any, task: Task) -> dict[str, Any]:
    """All tensors of a graph except its features, on the task's device."""
    found = {name: value for name, value in _record(graph).items() if isinstance(value, Tensor) and name != "x"}
    return {name: value.to(task.device) for name, value in found.items()}


def _resident_features(x: Tensor, task: Task, dtype: torch.dtype) -> Tensor:
    if x.dtype == dtype:
        return x.to(task.device)
    with shared_table(task, tuple(x.shape), dtype) as (table, writes):
        for start in range(0, len(x) if writes else 0, _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            table[part] = x[part]
    return table


@contextmanager
def shared_table(
    task: Task, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | None = None
) -> Iterator[tuple[Tensor, bool]]:
    """A table of zeros on the task's device, or on `device`, and whether this rank should write shared pieces.

    In host memory the ranks of a node share the table, and all may write to it; if several ranks know a piece, the one
    with `True` should write it. On a GPU each rank has its own table. When the context exits, all ranks of the node
    see the table. A collective of the node's ranks.
    """
    device = device or task.device
    if device.type != "cpu" or task.node.size() == 1:
        yield torch.zeros(shape, dtype=dtype, device=device), True
        return
    with table_in_file(task, shape, dtype) as (table, _):
        yield table, task.leads_node


@contextmanager
def table_in_file(
    task: Task, shape: tuple[int, ...], dtype: torch.dtype, folder: Path | None = None
) -> Iterator[tuple[Tensor, str]]:
    """A table of zeros that the ranks of a node share, and a path that opens its file until the context exits.

    The file is in `folder`, or in memory if that is None. It has no name: it disappears with its last mapping, so no
    rank has to remove it. The other ranks open it through /proc, so it works in containers with their own /tmp or a
    small /dev/shm. When the context exits, all ranks of the node see the table. A collective of the node's ranks.
    Raises TaskError without enough space in `folder`.
    """
    where = torch.zeros(2, dtype=torch.int64)
    descriptor = -1
    if task.leads_node:
        descriptor = _nameless_file(torch.Size(shape).numel() * dtype.itemsize, folder)
        where = torch.tensor([os.getpid(), descriptor])
    try:
        dist.broadcast(where, dist.get_global_rank(task.node, 0), group=task.node)
        process, number = where.tolist()
        path = f"/proc/{process}/fd/{number}"
        yield _mapped(path, shape, dtype), path
        dist.barrier(task.node)
    finally:
        if task.leads_node:
            os.close(descriptor)


def own_table(shape: tuple[int, ...], dtype: torch.dtype, folder: Path | None) -> Tensor:
    """A table of zeros in a file in `folder`, or in memory, that disappears with the table.

    Raises TaskError without enough space in `folder`.
    """
    descriptor = _nameless_file(torch.Size(shape).numel() * dtype.itemsize, folder)
    table = _mapped(f"/proc/self/fd/{descriptor}", shape, dtype)
    os.close(descriptor)
    return table


def _mapped(path: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.from_file(path, shared=True, size=torch.Size(shape).numel(), dtype=dtype).view(shape)


def _nameless_file(size: int, folder: Path | None) -> int:
    """A new file of at least `size` zeros; its descriptor."""
    if folder is None:
        descriptor = os.memfd_create("clusterctl-table")
        os.ftruncate(descriptor, max(1, size))
        return descriptor
    try:
        with TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, max(1, size))  # a write to a full disk's mapping would kill the rank
            return os.dup(file.fileno())
    except OSError as error:
        needed = f"no space for {size / 1e9:.1f} GB of rows between layers in {folder}: {error.strerror}"
        raise TaskError(needed, "set env.TMPDIR to a folder on a larger disk of the node", Cause.DISK) from error


def compressed(
    edges: Tensor, num_nodes: int, num_sources: int | None = None, *, shuffled: bool = False
) -> tuple[Tensor, Tensor]:
    """`indptr` and `indices` of edges given as int64 [2, edges], sources in the first row.

    `num_sources` is for edges between nodes of two types. `shuffled` lists the sources of every target in one random
    order of all nodes, instead of ascending; it is the same in every process.
    """
    return compressed_with_order(edges, num_nodes, num_sources, shuffled=shuffled)[:2]


def compressed_with_order(
    edges: Tensor, num_nodes: int, num_sources: int | None = None, *, shuffled: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Like `compressed`, and for each of the `indices` the place of its edge in `edges`, int64."""
    sources, targets = edges
    among = max(1, num_nodes if num_sources is None else num_sources)
    if not shuffled:
        ordered, order_of_edges = (targets * among + sources).sort(stable=True)
        return row_offsets(targets, num_nodes), (ordered % among).to(torch.int32), order_of_edges
    order = shuffled_order(among)
    place = torch.empty_like(order)
    place[order] = torch.arange(among)
    ordered, order_of_edges = place[sources].add_(targets, alpha=among).sort(stable=True)
    return row_offsets(targets, num_nodes), order.to(torch.int32)[ordered.remainder_(among)], order_of_edges


def shuffled_order(num_nodes: int) -> Tensor:
    """All nodes, int64, in a random order that depends only on `num_nodes`; it is the same in every process."""
    return draws(stream(Purpose.SHUFFLE), torch.arange(num_nodes)).argsort(stable=True)


def row_offsets(targets: Tensor, num_targets: int) -> Tensor:
    """`indptr` of edges into these int64 targets."""
    indptr = torch.zeros(num_targets + 1, dtype=torch.int64)
    torch.cumsum(targets.bincount(minlength=num_targets), 0, out=indptr[1:])
    return indptr


class Recipe(NamedTuple, Generic[T]):
    """How to prepare a data set.

    The identity holds everything the data depends on: if it changes, the data is prepared again. `build` gets a scratch
    folder.
    """

    name: str
    identity: dict[str, Any]
    build: Callable[[Path], T]

    @property
    def folder(self) -> str:
        """The name of its folder in the cache."""
        key = hashlib.sha256(json.dumps([FORMAT, self.identity], sort_keys=True).encode()).hexdigest()[:16]
        return f"{self.name}-{key}"

    def prepare(self, folder: Path) -> None:
        """Fill the folder."""
        scratch = folder / "scratch"
        scratch.mkdir()
        save(self.build(scratch), folder / FILE)
        shutil.rmtree(scratch)
        give_back()  # what the training allocates would come on top


def shared(task: Task, kind: Callable[..., T], name: str, identity: dict[str, Any], build: Callable[[Path], T]) -> T:
    """The result of `build` for this `identity`, built once and shared; a dataclass `kind` of tensors."""
    recipe = Recipe(name, identity, build)
    return load(kind, task.prepared(recipe.folder, recipe.prepare, whole) / FILE)


def whole(folder: Path) -> bool:
    """Whether the file in this folder of the cache is intact: reads all of it, at about 1 GB/s.

    torch.save writes a zip archive with a CRC-32 for every array.
    """
    try:
        with zipfile.ZipFile(folder / FILE) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile, EOFError, ValueError, NotImplementedError):
        return False


def save(value: Stored, path: Path) -> None:
    """Write `value`; it is on disk when this returns."""
    with path.open("wb") as file:
        torch.save(_record(value), file)
        file.flush()
        os.fsync(file.fileno())


def load(kind: Callable[..., T], path: Path) -> T:
    """The value saved in `path`, memory-mapped: pages are read when touched, and shared between processes."""
    return kind(**torch.load(path, mmap=True, weights_only=True))


def _record(value: Stored) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}
