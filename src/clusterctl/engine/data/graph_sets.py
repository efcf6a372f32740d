"""Many graphs: a TU data set, read by PyG's class, or what a user function loads.

What a function loads is checked and joined into one collection, with all attributes a model may name.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clusterctl.engine.data.number_files import folder_of
from clusterctl.engine.data.own_data import Given, is_graph
from clusterctl.engine.graph.blocks import rows_of
from clusterctl.engine.graph.collection import Collection, joined_graphs
from clusterctl.engine.graph.storage import Recipe, compressed
from clusterctl.shared.errors import Cause, TaskError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_OWN = ("x", "y", "edge_index", "batch", "ptr", "num_nodes")  # read, or made, for every collection
_WELL_KNOWN = ("edge_attr", "edge_weight", "pos")  # a mistake in one of these is an error, and not only not used
_LEVELS = ("edges", "nodes", "graphs")  # what an attribute has one row for
_HINT = (
    "return a data set or a list of torch_geometric.data.Data, each with edge_index and y, or three of them as splits"
)


def collection_of(result: Any, name: str, notes: list[str] | None = None, answers: str = "classes") -> Collection:
    """The graphs in a sequence of PyG's `Data`, or in three as train, val and test: see `Collection`. Raises TaskError.

    Each has `edge_index` and `y`, of the kind `answers` as in `Given.answers`. All other tensors with a row for each
    node, edge or graph are kept.
    """
    given = Given(name, notes)
    graphs, splits = _graphs_of(given, result)
    bounds, edges, x, counts = _joined(given, graphs)
    y, outputs = _answers(given, graphs, answers)
    more: dict[str, dict[str, Tensor]] = {level: {} for level in _LEVELS}
    for attribute, level, values in _attributes(given, graphs, counts):
        more[level][attribute] = values
    given.unused(graphs, [*_OWN, *(attribute for kept in more.values() for attribute in kept)])
    num_nodes = int(bounds[-1])
    return Collection(
        bounds,
        *compressed(edges, num_nodes),
        x=torch.empty(num_nodes, 0) if x is None else x,
        y=y,
        num_classes=outputs,
        given_edges=edges.int(),
        of_nodes=more["nodes"],
        of_edges=more["edges"],
        of_graphs=more["graphs"],
        splits=splits,
    )


def one_graph(given: Given, result: Any) -> Any:
    """Three lists of graphs with a `y` for each node, as train, val and test: one graph of PyG with masks of these.

    The graphs stay unconnected. Any other `result` is returned as it is.
    """
    if not given.parts(result, is_several):
        return result
    from torch_geometric.data import Data  # late: the user's function has imported it

    graphs, splits = _graphs_of(given, result)
    bounds, edges, x, counts = _joined(given, graphs)
    if x is None:
        raise given.wrong("graph 0: it has no x", "set x of all graphs")
    y = [given.tensor(graph, "y", f"graph {number}: ") for number, graph in enumerate(graphs)]
    for number, (own, count) in enumerate(zip(y, counts, strict=True)):
        if own.dim() == 0 or own.shape != (count["nodes"], *y[0].shape[1:]):
            what = f"graph {number}: y has shape {[*own.shape]}, and there are {count['nodes']} nodes"
            raise given.wrong(what, "give each node a class, or a row of as many labels in all graphs")
    of_graph = rows_of(bounds, len(x))
    masks = {f"{split}_mask": torch.isin(of_graph, numbers) for split, numbers in splits.items()}
    more = {name: values for name, level, values in _attributes(given, graphs, counts) if level != "graphs"}
    given.unused(graphs, [*_OWN, *more, *masks])
    return Data(**more | masks, x=x, y=torch.cat(y), edge_index=edges)


def _joined(given: Given, graphs: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor | None, list[dict[str, int]]]:
    """The bounds of the graphs' nodes, all edges, all `x` if there are any, and the rows of each graph's levels."""
    x, counts, parts = [], [], []
    has_x = _all_or_none(given, graphs, "x")
    for number, graph in enumerate(graphs):
        where = f"graph {number}: "
        if has_x:
            x.append(given.features(graph, where))
            if x[-1].size(1) != x[0].size(1):
                what = f"{where}x has {x[-1].size(1)} columns, and graph 0 has {x[0].size(1)}"
                raise given.wrong(what, "give all graphs the same features")
        nodes = len(x[-1]) if has_x else int(graph.num_nodes or 0)
        parts.append((nodes, given.edges(graph, nodes, nodes, where)))
        counts.append({"nodes": nodes, "edges": parts[-1][1].size(1), "graphs": 1})
    bounds, edges = joined_graphs(parts)
    if not has_x:
        return bounds, edges, None, counts
    rows = torch.cat(x)
    if all(_is_whole(graph.x) for graph in graphs):  # a model may look up embeddings
        rows = rows.long()
    return bounds, edges, rows, counts


def _graphs_of(given: Given, result: Any) -> tuple[list[Any], dict[str, Tensor]]:
    """All graphs, and the numbers of those of each split, if the result has splits."""
    parts, splits = given.parts(result, is_several), {}
    graphs: list[Any] = []
    for split, part in (parts or {"": result}).items():
        own = given.several(part, _HINT)
        if not own:
            raise given.wrong(f"the list of {split} is empty" if split else "the list is empty", _HINT)
        splits[split] = torch.arange(len(graphs), len(graphs) + len(own))
        graphs += own
    for number, graph in enumerate(graphs):
        if not is_graph(graph, "Data"):
            raise given.wrong(f"graph {number}: it is {type(graph).__name__}, not Data", _HINT)
    return graphs, splits if parts else {}


def _answers(given: Given, graphs: Sequence[Any], kind: str) -> tuple[Tensor, int]:
    """`y` of all graphs, and the number of the model's outputs: see `Given.answers`."""
    values = [given.tensor(graph, "y", f"graph {number}: ") for number, graph in enumerate(graphs)]
    if kind == "either":
        kind = "classes" if all(_is_whole(y) and y.numel() == 1 for y in values) else "numbers"
    rows = []
    for number, y in enumerate(values):
        where = f"graph {number}: "
        if kind == "numbers":
            rows.append(given.numbers({"y": y.reshape(1, -1) if y.dim() < 2 else y}, 1, where))
            if rows[-1].size(1) != rows[0].size(1):
                what = f"{where}y has {rows[-1].size(1)} values, and graph 0 has {rows[0].size(1)}"
                raise given.wrong(what, "give all graphs the same targets, with NaN where one is unknown")
            continue
        if y.numel() != 1:
            hint = 'set train.loss, such as "bce_with_logits", or choose one: data.y = data.y.view(-1)[:1]'
            raise given.wrong(f"{where}y has {y.numel()} values, and a graph has one class", hint)
        rows.append(given.classes(y.reshape(1), where))
        if int(rows[-1]) < 0:
            raise given.wrong(f"{where}y is {int(rows[-1])}, which is no class", "leave graphs without a class out")
    y = torch.cat(rows)
    return y, y.size(1) if kind == "numbers" else given.number_of_classes(y)


def is_several(part: Any) -> bool:
    """Whether this may be a data set, a list or a batch of graphs."""
    if hasattr(part, "to_data_list"):  # a batch
        return True
    return hasattr(part, "__getitem__") and not isinstance(part, Tensor | str | dict) and not is_graph(part)


def _is_whole(value: Tensor) -> bool:
    """Whether these are whole numbers, which stay so."""
    return not value.is_floating_point() and not value.is_complex() and value.dtype != torch.bool


def _all_or_none(given: Given, graphs: Sequence[Any], attribute: str) -> bool:
    """Whether all graphs have the attribute. Raises TaskError if only some have it."""
    having = sum(attribute in graph and graph[attribute] is not None for graph in graphs)
    if 0 < having < len(graphs):
        raise given.wrong(f"{having} of {len(graphs)} graphs have {attribute}", "give it to all of them, or to none")
    return having > 0


def _attributes(
    given: Given, graphs: Sequence[Any], counts: Sequence[dict[str, int]]
) -> Iterator[tuple[str, str, Tensor]]:
    """Name, level and values of each tensor that all graphs have, with as many rows in each as that level has there."""
    for attribute in sorted({str(name) for graph in graphs for name in graph.to_dict()} - set(_OWN)):
        known = attribute in _WELL_KNOWN
        if known and not _all_or_none(given, graphs, attribute):
            continue
        values: list[Any] = [graph[attribute] if attribute in graph else None for graph in graphs]  # noqa: SIM401 - of PyG
        if known:
            values = [given.tensor(graph, attribute, f"graph {number}: ") for number, graph in enumerate(graphs)]
        if not all(isinstance(value, Tensor) and value.layout == torch.strided for value in values):
            continue
        # Node numbers would have to be shifted in a batch.
        if "index" in attribute or "face" in attribute or any(value.is_complex() for value in values):
            continue
        values = [value.detach().cpu() if value.dim() else value.detach().cpu().view(1) for value in values]
        level = _level(given, attribute, values, counts)
        other = next((number for number, value in enumerate(values) if value.shape[1:] != values[0].shape[1:]), None)
        if level and other is None:
            kept = torch.cat(values)
            if kept.dtype != torch.bool:
                kept = kept.long() if _is_whole(kept) else kept.float()
            if known and not kept.isfinite().all():
                number = next(number for number, value in enumerate(values) if not value.float().isfinite().all())
                what = f"graph {number}: {attribute} has NaN or infinity"
                raise given.wrong(what, "fill them where the data is made")
            yield attribute, level, kept
        elif known:
            what = f"graph {other}: {attribute} has shape {[*values[other or 0].shape]}, and graph 0 has"
            raise given.wrong(f"{what} {[*values[0].shape]}", "give all graphs the same columns")


def _level(given: Given, attribute: str, values: Sequence[Tensor], counts: Sequence[dict[str, int]]) -> str:
    """The level with as many rows as the values of all graphs; "" if there is none."""
    of_edges = "edge" in attribute  # as in PyG, if there are as many nodes as edges
    if attribute in _WELL_KNOWN:
        wanted = "edges" if of_edges else "nodes"
        for number, (value, count) in enumerate(zip(values, counts, strict=True)):
            if len(value) != count[wanted]:
                what = f"graph {number}: {attribute} has {len(value)} rows, and there are {count[wanted]} {wanted}"
                raise given.wrong(what, f"give it one row for each of the {wanted}")
        return wanted
    sizes = [len(value) for value in values]
    fits = [level for level in _LEVELS if sizes == [count[level] for count in counts]]
    return next((level for level in fits if (level == "edges") == of_edges), next(iter(fits), ""))


_EDGES = "_A.txt"  # the file that every such data set has


def recipe(root: str | None) -> Recipe[Collection]:
    """How to prepare the data set in `root`, once for all ranks and runs. Raises TaskError."""
    identity = raw_identity(root)
    return Recipe("tu", identity, lambda scratch: read_raw(identity, scratch))


def raw_identity(root: str | None) -> dict[str, Any]:
    """Identifies a data set: the location of its raw files, their sizes and times. Raises TaskError."""
    hint = f"set data.root to a folder with raw/NAME{_EDGES}, raw/NAME_graph_indicator.txt, raw/NAME_graph_labels.txt"
    folder = folder_of(root, hint) / "raw"
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
    num_nodes, counts = int(bounds[-1]), torch.tensor([graph.num_edges for graph in graphs])
    first, last = bounds[:-1].repeat_interleave(counts), bounds[1:].repeat_interleave(counts)
    if ((edges < first) | (edges >= last)).any():
        message = f"{identity['name']}{_EDGES}: an edge joins two graphs"
        raise TaskError(message, "do the lines of NAME_graph_indicator.txt fit the nodes?", Cause.DATA)
    x = torch.cat([torch.empty(graph.num_nodes, 0) if graph.x is None else graph.x for graph in graphs])
    return Collection(bounds, *compressed(edges, num_nodes), x=x, y=y, num_classes=int(y.max()) + 1)
