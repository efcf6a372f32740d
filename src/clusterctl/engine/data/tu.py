"""Graphs in the raw format of the TU data sets, read by PyG's class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from clusterctl.engine.graph.collection import Collection, joined_graphs
from clusterctl.engine.graph.storage import Recipe, compressed
from clusterctl.shared.errors import Cause, TaskError

_EDGES = "_A.txt"  # the file that every such data set has


def recipe(root: str | None) -> Recipe[Collection]:
    """How to prepare the data set in `root`, once for all ranks and runs. Raises TaskError."""
    identity = raw_identity(root)
    return Recipe("tu", identity, lambda scratch: read_raw(identity, scratch))


def raw_identity(root: str | None) -> dict[str, Any]:
    """Identifies a data set: the location of its raw files, their sizes and times. Raises TaskError."""
    hint = f"set data.root to a folder with raw/NAME{_EDGES}, raw/NAME_graph_indicator.txt, raw/NAME_graph_labels.txt"
    if root is None:
        raise TaskError("this workload needs a data set, and data.root is not set", hint, Cause.DATA)
    folder = Path(root).resolve() / "raw"
    names = [path.name.removesuffix(_EDGES) for path in folder.glob(f"*{_EDGES}")]
    if len(names) != 1:
        found = ", ".join(sorted(names)) or f"no file *{_EDGES}"
        raise TaskError(f"expected one data set in {folder}, found {found}", hint, Cause.DATA)
    files = {path.name: path.stat() for path in sorted(folder.glob(f"{names[0]}_*.txt"))}
    for part in ("graph_indicator", "graph_labels"):
        if f"{names[0]}_{part}.txt" not in files:
            raise TaskError(f"no data: {folder / names[0]}_{part}.txt", hint, Cause.DATA)
    sizes = {name: [status.st_size, status.st_mtime_ns] for name, status in files.items()}
    return {"root": str(folder.parent), "name": names[0], **sizes}


def read_raw(identity: dict[str, Any], scratch: Path) -> Collection:
    """Read the data set with PyG's class, but without writing next to the raw files, which may be read-only."""
    from torch_geometric.datasets import TUDataset  # takes 1.6 s, and only one rank needs it

    class RawTUDataset(TUDataset):  # type: ignore[misc]
        @property
        def raw_dir(self) -> str:
            return str(Path(identity["root"], "raw"))

        @property
        def processed_dir(self) -> str:
            return str(scratch)

    try:
        graphs = list(RawTUDataset(identity["root"], identity["name"], use_node_attr=True))
        bounds, edges = joined_graphs([(graph.num_nodes, graph.edge_index) for graph in graphs])
        y = torch.cat([graph.y for graph in graphs])
    except (OSError, ValueError, IndexError, RuntimeError) as error:
        message = f"cannot read {identity['root']} as a TU data set: {error}"
        raise TaskError(message, "are the raw files complete?", Cause.DATA) from error
    labels = Path(identity["root"], "raw", f"{identity['name']}_graph_labels.txt").read_text().split()
    if len(graphs) != len(labels):  # PyG 2.8 counts graphs by their edges, so it may drop the last ones
        message = f"PyG reads {len(graphs)} of {len(labels)} graphs"
        raise TaskError(message, "the last graph in the files needs an edge", Cause.DATA)
    num_nodes = int(bounds[-1])
    x = torch.cat([torch.empty(graph.num_nodes, 0) if graph.x is None else graph.x for graph in graphs])
    return Collection(bounds, *compressed(edges, num_nodes), x=x, y=y, num_classes=int(y.max()) + 1)
