"""A graph whose edges are to be predicted, as a user function loads it: with splits of its own, or split here.

Without splits of its own, 85 % of all pairs of nodes with an edge are for training, 5 % for validation and 10 % for
testing, by a hash of the undirected pair: an edge, its copies and the reverse edge are in the same split. Only training
edges carry messages. A graph of several types has splits of its own, in which one type of edges has pairs to predict.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from clusterctl.engine.data.own_data import Given, is_graph
from clusterctl.engine.data.own_relations import typed_graph
from clusterctl.engine.graph.blocks import Adjacency
from clusterctl.engine.graph.hashing import Purpose, below, draws, stream
from clusterctl.engine.graph.links import LinkGraph, TypedLinkGraph, negatives
from clusterctl.engine.graph.storage import compressed, compressed_with_order
from clusterctl.shared.spec.forward import OF_EDGES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.engine.graph.storage import EdgeType

_SPLIT_SEED = 0  # not the training's seed: all trainings share one split
_TWENTIETHS, _VAL, _TEST = 20, 1, 2
_OWN_NEGATIVES = "dst_neg_index"  # as in the batches of PyG's LinkNeighborLoader with triplets
_LABELS = ("edge_label_index", "edge_label", "pos_edge_label_index", "neg_edge_label_index", _OWN_NEGATIVES)
_TIMES = ("time", "node_time", "edge_time")
_HINT = "split it as torch_geometric.transforms.RandomLinkSplit does: edge_label_index, with edge_label 1 or 0"


def links_of(result: Any, name: str, notes: list[str] | None = None) -> LinkGraph | TypedLinkGraph:
    """`typed_link_graph` of HeteroData, and otherwise `link_graph`. Raises TaskError."""
    first = result
    if isinstance(first, dict) and first:
        first = next(iter(first.values()))
    if (
        not is_graph(first)
        and hasattr(first, "__getitem__")
        and not isinstance(first, dict | str | Tensor)
        and len(first)
    ):
        first = first[0]  # of a list or data set
    return (typed_link_graph if is_graph(first, "HeteroData") else link_graph)(result, name, notes)


def link_graph(result: Any, name: str, notes: list[str] | None = None) -> LinkGraph:
    """The graph in PyG's `Data`, or in a data set of one, or in three of them as train, val and test. Raises TaskError.

    It has `x`, `edge_index` and perhaps attributes of the edges; of three, each has `edge_label_index` and
    `edge_label`, as from RandomLinkSplit, or `dst_neg_index`: for each pair with an edge, targets without one.
    """
    given = Given(name, notes)
    if parts := given.parts(result, is_graph):
        return _of_parts(given, {split: given.single(part, "Data") for split, part in parts.items()})
    data = given.single(result, "Data")
    if has := [attribute for attribute in _LABELS if attribute in data]:
        hint = "return three of them, for training, validation and testing, or leave it out: then edges are split here"
        raise given.wrong(f"it returned one graph with {has[0]}", hint)
    x = given.features(data)
    nodes = len(x)
    edges = given.edges(data, nodes, nodes)
    attributes = _attributes(given, data, edges.size(1))
    given.unused([data], ["x", "edge_index", *OF_EDGES])
    proper = edges[0] != edges[1]
    if loops := edges.size(1) - int(proper.sum()):
        given.notes.append(f"{loops} self loops in edge_index are not used")
    edges, attributes = edges[:, proper], {name: values[proper] for name, values in attributes.items()}
    # Which twentieth of all pairs each edge belongs to.
    part = below(draws(stream(Purpose.SPLIT, _SPLIT_SEED), _keys(edges, nodes)), torch.tensor(_TWENTIETHS))
    splits = {
        split: torch.unique(edges[:, (part >= first) & (part < end)], dim=1)
        for split, first, end in (("val", 0, _VAL), ("test", _VAL, _VAL + _TEST))
    }
    empty = [split for split, pairs in splits.items() if pairs.numel() == 0]
    if empty or not bool((part >= _VAL + _TEST).any()):
        what = f"edge_index has {edges.size(1)} edges, too few for {', '.join(empty) or 'training'}"
        raise given.wrong(what, "5 % of the edges are for validation, and 10 % for testing")
    others = _others(edges, (nodes, nodes), [pairs.size(1) for pairs in splits.values()], is_one_type=True)
    learned = part >= _VAL + _TEST
    messages = _messages(edges[:, learned], nodes, {name: values[learned] for name, values in attributes.items()})
    return LinkGraph(
        **messages,
        x=x,
        val=splits["val"].int(),
        val_negatives=others[0].int(),
        test=splits["test"].int(),
        test_negatives=others[1].int(),
    )


def _of_parts(given: Given, parts: Mapping[str, Any]) -> LinkGraph:
    """The graph of a user's own splits."""
    x = given.features(parts["train"], "train: ")
    nodes, messages, pairs = len(x), {}, {}
    has: list[str] = []
    for split, data in parts.items():
        where = f"{split}: "
        if split != "train" and not torch.equal(given.features(data, where), x):
            raise given.wrong(f"{where}x is not that of train", "give all three the same nodes, in the same order")
        edges = given.edges(data, nodes, nodes, where)
        attributes = _attributes(given, data, edges.size(1), where)
        has = [*attributes] if split == "train" else has
        if differing := {*attributes} ^ {*has}:
            name = min(differing)
            lacking_it = split if name in has else "train"
            what = f"{lacking_it}: it has no {name} that can be used, and others have"
            raise given.wrong(what, "give it to all three, with a finite number for each edge, or to none")
        messages[split] = _messages(edges, nodes, attributes)
        pairs[split] = (
            _examples(given, data, (nodes, nodes), where) if _is_labelled(data) else _Pairs(edges, edges[:, :0])
        )
        if split != "train" and not _is_labelled(data):
            raise given.wrong(f"{where}it has no edge_label_index", _HINT)
        _check_has_edges(given, pairs[split], where)
        given.unused([data], ["x", "edge_index", *OF_EDGES, *_LABELS], where)
    passing = {split: Adjacency(found["indptr"], found["indices"]).edge_index for split, found in messages.items()}
    _draw_lacking(given, pairs, passing, (nodes, nodes), is_one_type=True)
    for split in ("val", "test"):
        keys = _keys(pairs[split].edges, nodes)
        for where, edges in (
            ("examples of train", pairs["train"].edges),
            (f"in edge_index of {split}", passing[split]),
        ):
            _note_leak(given, split, torch.isin(keys, _keys(edges, nodes)), f", in either direction, {where}")
    train = messages["train"]
    own = {
        f"{split}_{name}": values
        for split in ("val", "test")
        if not all(torch.equal(values, train[name]) for name, values in messages[split].items())
        for name, values in messages[split].items()
    }
    is_all = not _is_labelled(parts["train"])  # all edges are examples
    return LinkGraph(
        **train,
        x=x,
        val=pairs["val"].edges.int(),
        val_negatives=pairs["val"].others.int(),
        val_each=pairs["val"].each,
        test=pairs["test"].edges.int(),
        test_negatives=pairs["test"].others.int(),
        test_each=pairs["test"].each,
        train=None if is_all else pairs["train"].edges.int(),
        train_negatives=None if is_all else pairs["train"].others.int(),
        **own,
    )


class _Pairs(NamedTuple):
    """The pairs with an edge and those without one, int64 [2, pairs]; so many of the latter belong to `each` edge."""

    edges: Tensor
    others: Tensor
    each: int = 0


def typed_link_graph(result: Any, name: str, notes: list[str] | None = None) -> TypedLinkGraph:
    """The graph in three of PyG's `HeteroData`, as train, val and test. Raises TaskError.

    One type of edges has `edge_label_index` and the like, as from RandomLinkSplit; the others only carry messages.
    """
    given = Given(name, notes)
    parts = given.parts(result, is_graph)
    if not parts:
        given.single(result, "HeteroData")
        hint = "return what PyG's RandomLinkSplit(edge_types=[TYPE], rev_edge_types=[ITS REVERSE]) makes of it"
        raise given.wrong("it returned one graph of several types: which edges are to be predicted?", hint)
    parts = {split: given.single(part, "HeteroData") for split, part in parts.items()}
    edge_type = _predicted_type(given, parts)
    nodes: dict[str, Any] = {}
    messages: dict[str, dict[str, Any]] = {}
    pairs, sides = {}, (0, 0)
    for split, data in parts.items():
        where = f"{split}: "
        own_nodes, messages[split] = _messages_by_type(
            given if split == "train" else Given(name), data, edge_type, where
        )
        if split == "train":
            nodes, sides = own_nodes, (own_nodes["num_nodes"][edge_type[0]], own_nodes["num_nodes"][edge_type[2]])
        _check_same(given, (nodes, messages["train"]), (own_nodes, messages[split]), where)
        store, where = data[edge_type], f"{where}{', '.join(edge_type)}: "
        passing = _edges_of(messages[split], edge_type)
        is_labelled = _is_labelled(store)
        pairs[split] = _examples(given, store, sides, where) if is_labelled else _Pairs(passing, passing[:, :0])
        _check_has_edges(given, pairs[split], where)
    is_one_type = edge_type[0] == edge_type[2]
    of_all = {split: _edges_of(own, edge_type) for split, own in messages.items()}
    _draw_lacking(given, pairs, of_all, sides, is_one_type=is_one_type)
    reverse = _reverse_of(edge_type, messages["train"])
    if reverse:
        listed = " and ".join(map(str, reverse))
        given.notes.append(f"{listed} is {edge_type} the other way round: examples pass no messages there either")
    _note_leaks_by_type(given, pairs, messages, edge_type, reverse)
    others: dict[str, Any] = {
        f"{split}_{name}": messages[split][name]
        for split in ("val", "test")
        if not _are_equal(messages[split], messages["train"])
        for name in ("indptr", "indices", *OF_EDGES)
    }
    return TypedLinkGraph(
        **nodes,
        **messages["train"],
        edge_type=edge_type,
        reverse=reverse,
        train=pairs["train"].edges.int(),
        train_negatives=pairs["train"].others.int(),
        val=pairs["val"].edges.int(),
        val_negatives=pairs["val"].others.int(),
        val_each=pairs["val"].each,
        test=pairs["test"].edges.int(),
        test_negatives=pairs["test"].others.int(),
        test_each=pairs["test"].each,
        **others,
    )


def _messages_by_type(
    given: Given, data: Any, edge_type: EdgeType, where: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """As `typed_graph`, without times, which are named as not used, and without pairs to predict."""
    data, timed = copy(data), []
    for store in data.stores:
        for name in (*_TIMES, *(_LABELS if store is data[edge_type] else ())):
            if name in store:
                timed += [str(store._key or "the graph itself")] if name in _TIMES else []  # noqa: SLF001 - PyG's only name
                del store[name]
    if timed:
        given.notes.append(f"times of {', '.join(timed)} are not used: examples see edges of any time")
    found = typed_graph(given, data, where)
    for kind in data.node_types:
        given.unused([data[kind]], ["x"], f"{kind}: ")
    return found


def _edges_of(messages: Mapping[str, Any], relation: EdgeType) -> Tensor:
    """int64 [2, edges]."""
    return Adjacency(messages["indptr"][relation], messages["indices"][relation]).edge_index


def _are_equal(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(
        {*one[name]} == {*other[name]}
        and all(torch.equal(array, other[name][relation]) for relation, array in one[name].items())
        for name in ("indptr", "indices", *OF_EDGES)
    )


def _check_same(given: Given, train: tuple[Any, Any], own: tuple[Any, Any], where: str) -> None:
    """Refuse a split with other nodes or types than `train` has."""
    if train[0]["num_nodes"] != own[0]["num_nodes"] or {*train[0]["x"]} != {*own[0]["x"]}:
        raise given.wrong(f"{where}its nodes are not those of train", "give all three the same types, x and num_nodes")
    for kind, x in train[0]["x"].items():
        if not torch.equal(x, own[0]["x"][kind]):
            what = f"{where}{kind}: x is not that of train"
            raise given.wrong(what, "give all three the same nodes, in the same order")
    if different := {*train[1]["indptr"]} ^ {*own[1]["indptr"]}:
        what = f"{where}only one of it and train has edges of type {min(different)}"
        raise given.wrong(what, "give all three the same types of edges, if need be without edges")
    for name in OF_EDGES:
        if different := {*train[1][name]} ^ {*own[1][name]}:
            what = f"{where}only one of it and train has {name} of {min(different)} that can be used"
            raise given.wrong(what, "give it to all three, with a finite number for each edge, or to none")


def _predicted_type(given: Given, parts: Mapping[str, Any]) -> EdgeType:
    """The only type of edges with pairs to predict."""
    labelled = {split: [one for one in data.edge_types if _is_labelled(data[one])] for split, data in parts.items()}
    for split in ("val", "test"):
        if len(found := labelled[split]) != 1:
            listed = " and of ".join(map(str, found)) or "no type"
            raise given.wrong(f"{split}: it has edge_label_index of {listed}", f"of one type of edges; {_HINT}")
    (edge_type,) = labelled["val"]
    for split in ("train", "test"):
        if others := [one for one in labelled[split] if one != edge_type]:
            what = f"{split}: it has edge_label_index of {others[0]}, and val of {edge_type}"
            raise given.wrong(what, "give all three those of one type")
    return edge_type  # type: ignore[no-any-return]


def _reverse_of(edge_type: EdgeType, messages: Mapping[str, Any]) -> list[EdgeType]:
    """The other relations that are, by PyG's naming or by their pairs, the same edges the other way round."""
    source, name, target = edge_type
    own, found = torch.unique(_edges_of(messages, edge_type), dim=1), []
    for relation in messages["indptr"]:
        if (relation[0], relation[2]) == (target, source) and relation != edge_type:
            is_named = relation[1] == f"rev_{name}" or name == f"rev_{relation[1]}"
            pairs = torch.unique(_edges_of(messages, relation).flip(0), dim=1)
            if is_named or (own.numel() and torch.equal(own, pairs)):
                found.append(relation)
    return found


def _note_leaks_by_type(
    given: Given,
    pairs: Mapping[str, _Pairs],
    messages: Mapping[str, Any],
    edge_type: EdgeType,
    reverse: list[EdgeType],
) -> None:
    """Note pairs to predict that are examples of training, or that carry messages when they are predicted."""
    both_ways = edge_type[0] == edge_type[2]
    for split in ("val", "test"):
        places = {" examples of train": pairs["train"].edges}
        places[f" in edge_index of {split}"] = _edges_of(messages[split], edge_type)
        places |= {f" in edge_index of {one} of {split}": _edges_of(messages[split], one).flip(0) for one in reverse}
        for where, edges in places.items():
            own, others = pairs[split].edges, torch.cat([edges, edges.flip(0)], 1) if both_ways else edges
            among = 1 + max(int(one.max()) for one in (own, others) if one.numel())
            _note_leak(given, split, torch.isin(own[0] * among + own[1], others[0] * among + others[1]), where)


def _check_has_edges(given: Given, pairs: _Pairs, where: str) -> None:
    if not pairs.edges.numel():
        raise given.wrong(f"{where}no pair has an edge (edge_label 1)", _HINT)


def _note_leak(given: Given, split: str, is_known: Tensor, where: str) -> None:
    if count := int(is_known.sum()):
        given.notes.append(f"leak: {count} of {len(is_known)} pairs to predict in {split} are{where}")


def _draw_lacking(
    given: Given, pairs: dict[str, _Pairs], passing: Mapping[str, Tensor], sides: tuple[int, int], *, is_one_type: bool
) -> None:
    """Draw, once, as many pairs without an edge as with one for splits that have none."""
    lacking = [split for split in ("val", "test") if not pairs[split].others.numel()]
    if lacking:
        everything = torch.cat([*passing.values(), *(one.edges for one in pairs.values())], 1)
        counts = [pairs[split].edges.size(1) for split in lacking]
        for split, others in zip(lacking, _others(everything, sides, counts, is_one_type=is_one_type), strict=True):
            pairs[split] = _Pairs(pairs[split].edges, others)
        given.notes.append(f"{' and '.join(lacking)}: no pair has edge_label 0, so as many without an edge are drawn")


def _attributes(given: Given, data: Any, edges: int, where: str = "") -> dict[str, Tensor]:
    """The usable attributes of the edges, by name."""
    found = {name: given.of_edges(data, name, edges, where) for name in OF_EDGES}
    return {name: values for name, values in found.items() if values is not None}


def _messages(edges: Tensor, nodes: int, attributes: Mapping[str, Tensor]) -> dict[str, Any]:
    """Edges that carry messages, with their attributes, as fields of a `LinkGraph`."""
    indptr, indices, order = compressed_with_order(edges, nodes)
    return {"indptr": indptr, "indices": indices, **{name: values[order] for name, values in attributes.items()}}


def _is_labelled(data: Any) -> bool:
    return any(attribute in data for attribute in _LABELS)


def _examples(given: Given, data: Any, sides: tuple[int, int], where: str) -> _Pairs:
    """The pairs of a split, between so many sources and targets."""
    found = _labelled(given, data, sides, where)
    if _OWN_NEGATIVES not in data:
        return found
    if found.others.numel():
        what = f"{where}it has pairs without an edge twice: {_OWN_NEGATIVES}, and those with edge_label 0"
        raise given.wrong(what, "leave one of them out")
    targets, pairs = given.tensor(data, _OWN_NEGATIVES, where), found.edges.size(1)
    targets = targets[:, None] if targets.dim() == 1 else targets
    if targets.dim() != 2 or len(targets) != pairs or not targets.numel():
        what = f"{where}{_OWN_NEGATIVES} has shape {[*targets.shape]}, and there are {pairs} pairs with an edge"
        raise given.wrong(what, "give as many targets for each of them: [pairs, targets]")
    each = targets.size(1)
    flat = {_OWN_NEGATIVES: torch.stack([found.edges[0].repeat_interleave(each).to(targets.dtype), targets.flatten()])}
    return _Pairs(found.edges, given.edges(flat, *sides[::-1], where, _OWN_NEGATIVES), each)


def _labelled(given: Given, data: Any, sides: tuple[int, int], where: str) -> _Pairs:
    """The pairs that labels, or two lists, tell apart."""
    sources, targets = sides
    if "pos_edge_label_index" in data:  # of RandomLinkSplit(split_labels=True)
        positive = given.edges(data, targets, sources, where, "pos_edge_label_index")
        has_others = "neg_edge_label_index" in data
        others = given.edges(data, targets, sources, where, "neg_edge_label_index") if has_others else positive[:, :0]
        return _Pairs(positive, others)
    pairs = given.edges(data, targets, sources, where, "edge_label_index")
    if "edge_label" not in data:
        return _Pairs(pairs, pairs[:, :0])
    label = given.tensor(data, "edge_label", where)
    if tuple(label.shape) != (pairs.size(1),):
        what = f"{where}edge_label has shape {[*label.shape]}, and edge_label_index has {pairs.size(1)} pairs"
        raise given.wrong(what, "give one label for each pair: 1 for an edge, 0 for none")
    if not bool(((label == 0) | (label == 1)).all()):
        other = label[(label != 0) & (label != 1)][0].item()
        hint = "give 1 for an edge and 0 for none; ratings and types of edges are not predicted"
        raise given.wrong(f"{where}edge_label has values such as {other:.4g}", hint)
    return _Pairs(pairs[:, label == 1], pairs[:, label == 0])


def _keys(pairs: Tensor, nodes: int) -> Tensor:
    """A number for each undirected pair."""
    return pairs.min(0).values * nodes + pairs.max(0).values


def _others(edges: Tensor, sides: tuple[int, int], counts: list[int], *, is_one_type: bool) -> tuple[Tensor, ...]:
    """So many pairs of two nodes without an edge, the same in every process.

    Of one type, pairs are of different nodes, without an edge in either direction.
    """
    sources, targets = sides
    if is_one_type:
        edges = torch.cat([edges, edges.flip(0)], 1)
    everything, numbers = Adjacency(*compressed(edges, targets, sources)), torch.arange(sum(counts))
    found = torch.stack(negatives(everything, sources, numbers, _SPLIT_SEED, epoch=0, distinct=is_one_type))
    return torch.split(found, counts, dim=1)
