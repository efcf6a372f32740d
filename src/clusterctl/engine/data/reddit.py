"""One graph in the raw format of PyG's Reddit data set: two numpy archives, read by PyG's class."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from clusterctl.engine.data.number_files import states_of
from clusterctl.engine.graph.storage import Graph, Recipe, compressed
from clusterctl.shared.errors import Cause, TaskError

RAW_FILES = ("reddit_data.npz", "reddit_graph.npz")


def raw_identity(root: str | Path | None) -> dict[str, Any]:
    """Identifies a data set: the location of its raw files, their sizes and times. Raises TaskError."""
    hint = f"set data.root to a folder with {' and '.join(f'raw/{name}' for name in RAW_FILES)}"
    if root is None:
        raise TaskError("this workload needs a data set, and data.root is not set", hint, Cause.DATA)
    folder = Path(root).resolve()
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
