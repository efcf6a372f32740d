"""Graphs in the raw format of PyG's Reddit data set: two numpy archives, fit for any node classification."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from clusterctl.errors import Cause, TaskError
from clusterctl.graph.storage import Graph, Recipe, compressed, shared

if TYPE_CHECKING:
    from clusterctl.task.task import Task

RAW_FILES = ("reddit_data.npz", "reddit_graph.npz")


def raw_identity(root: str | None) -> dict[str, Any]:
    """What tells one data set from another: where its raw files lie, their sizes and times. Raises TaskError."""
    hint = f"data.root names a folder with {' and '.join(f'raw/{name}' for name in RAW_FILES)}"
    if root is None:
        raise TaskError("this workload needs a data set, and data.root is not set", hint, Cause.DATA)
    identity: dict[str, Any] = {"root": str(Path(root).resolve())}
    for name in RAW_FILES:
        path = Path(identity["root"], "raw", name)
        try:
            status = path.stat()
        except OSError as error:
            raise TaskError(f"no data: {path}: {error.strerror}", hint, Cause.DATA) from None
        identity[name] = [status.st_size, status.st_mtime_ns]
    return identity


def shared_raw_graph(task: Task, identity: dict[str, Any]) -> Graph:
    """The graph in the raw files of this identity, read once and shared by all ranks, runs and workloads."""
    return shared(task, Graph, *recipe(identity))


def recipe(identity: dict[str, Any]) -> Recipe[Graph]:
    """How this data set is prepared."""
    return Recipe("reddit", identity, lambda scratch: read_raw(Path(identity["root"]), scratch))


def read_raw(root: Path, scratch: Path) -> Graph:
    """Read the data set with PyG's own class, which would like to write beside the raw files; they may be read-only."""
    from torch_geometric.datasets import Reddit  # 1.6 s, and only one rank of all needs it

    class RawReddit(Reddit):  # type: ignore[misc]
        @property
        def processed_dir(self) -> str:
            return str(scratch)

    try:
        data = RawReddit(str(root))[0]
    except (OSError, EOFError, ValueError, KeyError, BadZipFile) as error:
        raise TaskError(
            f"cannot read {root} as a Reddit data set: {error}", "are the raw files whole?", Cause.DATA
        ) from error
    if int(data.y[data.train_mask | data.val_mask | data.test_mask].min()) < 0:
        raise TaskError(
            f"cannot read {root} as a Reddit data set: a node of a split has no label",
            "leave it out of the splits",
            Cause.DATA,
        )
    return Graph(
        *compressed(data.edge_index, data.num_nodes),
        x=data.x,
        y=data.y,
        train=data.train_mask.nonzero().squeeze(1),
        val=data.val_mask.nonzero().squeeze(1),
        test=data.test_mask.nonzero().squeeze(1),
        num_classes=int(data.y.max()) + 1,
    )
