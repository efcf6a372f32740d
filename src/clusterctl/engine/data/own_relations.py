"""A graph with several types of nodes and edges that a user function loads: tables, and the keys between them.

Nodes and edges may have times, and so may the examples, each of which then sees only what is not later than itself. The
examples are the nodes of one type, or rows of a table that name a node and a time for each answer, as in RelBench.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clusterctl.engine.data.own_data import SPLITS, Given
from clusterctl.engine.graph.storage import LabelledHeteroGraph, compressed_with_order, row_offsets
from clusterctl.shared.spec.forward import OF_EDGES

if TYPE_CHECKING:
    from clusterctl.engine.graph.storage import EdgeType

_MASKS = tuple(f"{split}_mask" for split in SPLITS)
_SEEDS = ("seed_index", "seed_time")
_EXACT_IN_FLOAT32 = 1 << 24


def relations_of(
    result: Any, name: str, notes: list[str] | None = None, answers: str = "classes"
) -> LabelledHeteroGraph:
    """The graph in PyG's `HeteroData`, or in a data set of one, with `y` of one node type. Raises TaskError.

    `answers` is the kind of `y`, as in `Given.answers`.
    """
    given = Given(name, notes)
    data = given.single(result, "HeteroData")
    labelled = [kind for kind in data.node_types if "y" in data[kind]]
    if len(labelled) != 1:
        hint = "set y, train_mask, val_mask and test_mask of one node type, and leave y of the others out"
        raise given.wrong(f"it has labels y of {', '.join(labelled) or 'no node type'}", hint)
    (kind,) = labelled
    nodes, edges = typed_graph(given, data)
    store, where, times = data[kind], f"{kind}: ", nodes["node_times"]
    has_seeds = "seed_index" in store
    seeds = _seed_nodes(given, store, nodes["num_nodes"][kind], where) if has_seeds else None
    count = nodes["num_nodes"][kind] if seeds is None else len(seeds)
    y = given.answers(store, count, answers, where)
    masks: dict[str, Any] = given.splits(store, y, where)
    seed_times = None
    if edges["edge_times"]:
        seed_times = _seed_times(given, store, count, seeds, times.get(kind), where)
        _check_units(given, seed_times, masks["train"], edges["edge_times"], where)
    elif "seed_time" in store:
        hint = "set time of the tables with events, or of edges, in the unit of seed_time"
        raise given.wrong(f"{where}it has seed_time, but no nodes or edges at their ends have a time", hint)
    elif times:
        given.notes.append(f"times of {', '.join(times)} are not used: no edges lead from there, and none has a time")
    given.unused([store], [*_of_nodes(data, kind), "y", *_MASKS, *_SEEDS], where)
    for other in data.node_types:
        if other != kind:
            given.unused([data[other]], _of_nodes(data, other), f"{other}: ")
    return LabelledHeteroGraph(
        **nodes,
        **edges,
        node_type=kind,
        y=y,
        **masks,
        num_classes=given.outputs(y),
        seed_nodes=seeds,
        seed_times=seed_times,
    )


def typed_graph(given: Given, data: Any, part: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of a `HeteroGraph` that are about nodes, and those about edges. Raises TaskError.

    `part` begins the messages.
    """
    x, counts, times = {}, {}, {}
    for kind in data.node_types:
        store, where = data[kind], f"{part}{kind}: "
        if "x" in store and store["x"] is not None:
            x[kind] = given.features(store, where)
        counts[kind] = len(x[kind]) if kind in x else _number_of_nodes(given, store, where)
        if attribute := _time_of(store, "node_time"):
            times[kind] = _times(given, store, attribute, counts[kind], where)
    found: dict[EdgeType, tuple[Tensor, Tensor]] = {}
    of_edges: dict[EdgeType, Tensor] = {}
    attributes: dict[str, dict[EdgeType, Tensor]] = {name: {} for name in OF_EDGES}
    for edge_type in data.edge_types:
        source, _, target = edge_type
        where = f"{part}{', '.join(edge_type)}: "
        if missing := [kind for kind in (source, target) if kind not in counts]:
            raise given.wrong(f"{where}there are no nodes of type {missing[0]}", f"set x of {missing[0]}")
        pairs = given.edges(data[edge_type], counts[target], counts[source], where)
        attribute = _time_of(data[edge_type], "edge_time")
        own = _times(given, data[edge_type], attribute, pairs.size(1), where) if attribute else None
        _check_same_kind(given, own, times, where)
        if source in times:
            of_source = times[source][pairs[0]]
            own = of_source if own is None else own.maximum(of_source)
        if own is None:
            indptr, indices, order = compressed_with_order(pairs, counts[target], counts[source])
            found[edge_type] = indptr, indices
        else:
            order = own.argsort(stable=True)
            order = order[pairs[1][order].argsort(stable=True)]
            found[edge_type] = row_offsets(pairs[1], counts[target]), pairs[0][order].to(torch.int32)
            of_edges[edge_type] = own[order]
        for name, by_type in attributes.items():
            values = given.of_edges(data[edge_type], name, pairs.size(1), where)
            if values is not None:
                by_type[edge_type] = values[order]
        given.unused([data[edge_type]], ["edge_index", *OF_EDGES, *([attribute] if attribute else [])], where)
    given.unused([store for store in data.stores if store._key is None], [], f"{part}the graph itself: ")  # noqa: SLF001
    if not found:
        raise given.wrong(f"{part}it has no edges", "set edge_index of at least one type of edges")
    empty = [", ".join(edge_type) for edge_type, (_, indices) in found.items() if not indices.numel()]
    if empty:
        given.notes.append(f"there are no edges of type {' and of type '.join(empty)}")
    lonely = [kind for kind in counts if not any(kind in (edge_type[0], edge_type[2]) for edge_type in found)]
    if lonely:
        given.notes.append(f"no type of edges has nodes of type {' or '.join(lonely)}: they are not used")
    return (
        {"num_nodes": counts, "x": x, "node_times": times},
        {
            "indptr": {edge_type: indptr for edge_type, (indptr, _) in found.items()},
            "indices": {edge_type: indices for edge_type, (_, indices) in found.items()},
            "edge_times": of_edges,
            **attributes,
        },
    )


def _of_nodes(data: Any, kind: str) -> list[str]:
    """The attributes of this node type that are read for any purpose."""
    time = _time_of(data[kind], "node_time")
    return ["x", *([time] if time else [])]


def _number_of_nodes(given: Given, store: Any, where: str) -> int:
    """`num_nodes` of a type without features, or the number of its times."""
    count = store["num_nodes"] if "num_nodes" in store else None  # noqa: SIM401 - PyG's stores have no `get`
    if count is None and (attribute := _time_of(store, "node_time")):
        count = len(store[attribute])
    if count is None:
        raise given.wrong(f"{where}it has no x", "set x, or num_nodes: then embeddings are learned for the nodes")
    if not isinstance(count, int) or count < 1:
        raise given.wrong(f"{where}num_nodes is {count}", "give each type at least one node, or leave it out")
    return count


def _time_of(store: Any, other_name: str) -> str:
    """The attribute with the times: `time`, as in PyG, or the other name; empty if there is none."""
    return next((name for name in ("time", other_name) if name in store and store[name] is not None), "")


def _times(given: Given, store: Any, attribute: str, rows: int, where: str) -> Tensor:
    """Times, int64 or float64 [rows]."""
    times = given.tensor(store, attribute, where)
    kind = str(times.dtype).removeprefix("torch.")
    if times.dim() == 2 and times.size(1) == 1:
        times = times.squeeze(1)
    if tuple(times.shape) != (rows,):
        what = f"{where}{attribute} has shape {[*times.shape]}, not [{rows}]"
        raise given.wrong(what, "give one time for each, such as seconds since 1970")
    if times.is_complex() or times.dtype == torch.bool:
        raise given.wrong(f"{where}{attribute} is {kind}", "give whole numbers, such as seconds since 1970")
    if times.is_floating_point():
        if bad := int((~times.isfinite()).sum()):
            what = f"{where}{attribute} has NaN or infinity in {bad} of {rows} rows: a missing time"
            raise given.wrong(what, "leave these rows out, or give 0 to those that may always be seen")
        if times.dtype != torch.float64 and times.numel() and float(times.max()) > _EXACT_IN_FLOAT32:
            what = f"{where}{attribute} is {kind}, which does not hold times up to {float(times.max()):.0f} exactly"
            raise given.wrong(what, "make it int64 where it is created")
    if bad := int((times < 0).sum()):
        first = int((times < 0).nonzero()[0])
        what = f"{where}{attribute} is negative in {bad} of {rows} rows, first in row {first}: a missing time?"
        raise given.wrong(what, "leave these rows out, give 0 to those that may always be seen, or shift all times")
    return times.double() if times.is_floating_point() else times.long()


def _check_same_kind(given: Given, own: Tensor | None, times: dict[str, Tensor], where: str) -> None:
    """Refuse whole numbers beside others: they tend to be in different units."""
    others = {**times, where.rstrip(": "): own} if own is not None else times
    names = {kind: str(one.dtype).removeprefix("torch.") for kind, one in others.items() if one is not None}
    if len(set(names.values())) > 1:
        listed = ", ".join(f"{kind} in {dtype}" for kind, dtype in names.items())
        raise given.wrong(
            f"times are of different types: {listed}", "give all in int64 and in one unit, such as seconds"
        )


def _seed_nodes(given: Given, store: Any, nodes: int, where: str) -> Tensor:
    seeds = given.tensor(store, "seed_index", where)
    if seeds.dim() != 1 or seeds.is_floating_point() or seeds.is_complex() or seeds.dtype == torch.bool:
        what = f"{where}seed_index is {str(seeds.dtype).removeprefix('torch.')} {[*seeds.shape]}"
        raise given.wrong(what, "give the number of a node for each y, int64 [rows]")
    if seeds.numel() and not 0 <= int(seeds.min()) <= int(seeds.max()) < nodes:
        what = f"{where}seed_index has nodes from {int(seeds.min())} to {int(seeds.max())}, beyond its {nodes} nodes"
        raise given.wrong(what, f"number the nodes from 0 to {nodes - 1}")
    return seeds.long()


def _seed_times(
    given: Given, store: Any, rows: int, seeds: Tensor | None, of_nodes: Tensor | None, where: str
) -> Tensor:
    """The time of each example: `seed_time`, or else that of its node."""
    if "seed_time" in store:
        times = _times(given, store, "seed_time", rows, where)
        _check_same_kind(given, times, {} if of_nodes is None else {"time": of_nodes}, f"{where}seed_time")
        if of_nodes is not None and (late := int((of_nodes[slice(None) if seeds is None else seeds] > times).sum())):
            given.notes.append(f"{where}{late} of {rows} rows are earlier than the node that they are about")
        return times
    if of_nodes is None:
        hint = "set seed_time: the time at which each y is to be known, in the unit of the other times"
        raise given.wrong(f"{where}the data has times, and y has no seed_time", hint)
    return of_nodes if seeds is None else of_nodes[seeds]


def _check_units(given: Given, seeds: Tensor, train: Tensor, times: dict[EdgeType, Tensor], where: str) -> None:
    """Refuse examples of which none sees an edge with a time, and note the types of which none sees an edge."""
    earliest = {edge_type: float(own.min()) for edge_type, own in times.items() if own.numel()}
    latest = float(seeds[train].max())
    unseen = [edge_type for edge_type, first in earliest.items() if first > latest]
    if unseen and len(unseen) == len(earliest):
        what = f"{where}all examples of train are at {latest:.10g} or earlier, and all edges with times later"
        raise given.wrong(what, "are the times of both in the same unit, such as seconds?")
    for edge_type in unseen:
        first = f"they begin at {earliest[edge_type]:.10g}, and the last such example is at {latest:.10g}"
        given.notes.append(f"no example of train sees edges of type {', '.join(edge_type)}: {first}")
    if seeds.is_floating_point() != next(iter(times.values())).is_floating_point():
        what = f"{where}seed_time and the times of edges are of different types"
        raise given.wrong(what, "give all in int64 and in one unit, such as seconds")
