"""A graph whose edges are to be predicted, as a user function loads it: with splits of its own, or split here.

Without splits of its own, 85 % of all pairs of nodes with an edge are for training, 5 % for validation and 10 % for
testing, by a hash of the undirected pair: an edge, its copies and the reverse edge are in the same split. Only training
edges carry messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from clusterctl.engine.data.own_data import Given, is_graph
from clusterctl.engine.graph.blocks import Adjacency
from clusterctl.engine.graph.hashing import Purpose, below, draws, stream
from clusterctl.engine.graph.links import LinkGraph, negatives
from clusterctl.engine.graph.storage import compressed, compressed_with_order
from clusterctl.shared.spec.forward import OF_EDGES

if TYPE_CHECKING:
    from collections.abc import Mapping

_SPLIT_SEED = 0  # not the training's seed: all trainings share one split
_TWENTIETHS, _VAL, _TEST = 20, 1, 2
_OWN_NEGATIVES = "dst_neg_index"  # as in the batches of PyG's LinkNeighborLoader with triplets
_LABELS = ("edge_label_index", "edge_label", "pos_edge_label_index", "neg_edge_label_index", _OWN_NEGATIVES)
_HINT = "split it as torch_geometric.transforms.RandomLinkSplit does: edge_label_index, with edge_label 1 or 0"


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
    others = _others(edges, nodes, [pairs.size(1) for pairs in splits.values()])
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
        pairs[split] = _examples(given, data, nodes, where) if _is_labelled(data) else _Pairs(edges, edges[:, :0])
        if split != "train" and not _is_labelled(data):
            raise given.wrong(f"{where}it has no edge_label_index", _HINT)
        if not pairs[split].edges.numel():
            raise given.wrong(f"{where}no pair has an edge (edge_label 1)", _HINT)
        given.unused([data], ["x", "edge_index", *OF_EDGES, *_LABELS], where)
    passing = {split: Adjacency(found["indptr"], found["indices"]).edge_index for split, found in messages.items()}
    lacking = [split for split in ("val", "test") if not pairs[split].others.numel()]
    if lacking:  # as many pairs without an edge, which are drawn once
        everything = torch.cat([*passing.values(), *(pairs[split].edges for split in parts)], 1)
        counts = [pairs[split].edges.size(1) for split in lacking]
        for split, others in zip(lacking, _others(everything, nodes, counts), strict=True):
            pairs[split] = _Pairs(pairs[split].edges, others)
        given.notes.append(f"{' and '.join(lacking)}: no pair has edge_label 0, so as many without an edge are drawn")
    for split in ("val", "test"):
        keys = _keys(pairs[split].edges, nodes)
        for where, edges in (
            ("examples of train", pairs["train"].edges),
            (f"in edge_index of {split}", passing[split]),
        ):
            if count := int(torch.isin(keys, _keys(edges, nodes)).sum()):
                what = f"{count} of {len(keys)} pairs to predict in {split} are, in either direction, {where}"
                given.notes.append(f"leak: {what}")
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


def _examples(given: Given, data: Any, nodes: int, where: str) -> _Pairs:
    """The pairs of a split."""
    found = _labelled(given, data, nodes, where)
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
    return _Pairs(found.edges, given.edges(flat, nodes, nodes, where, _OWN_NEGATIVES), each)


def _labelled(given: Given, data: Any, nodes: int, where: str) -> _Pairs:
    """The pairs that labels, or two lists, tell apart."""
    if "pos_edge_label_index" in data:  # of RandomLinkSplit(split_labels=True)
        positive = given.edges(data, nodes, nodes, where, "pos_edge_label_index")
        has_others = "neg_edge_label_index" in data
        others = given.edges(data, nodes, nodes, where, "neg_edge_label_index") if has_others else positive[:, :0]
        return _Pairs(positive, others)
    pairs = given.edges(data, nodes, nodes, where, "edge_label_index")
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


def _others(edges: Tensor, nodes: int, counts: list[int]) -> tuple[Tensor, ...]:
    """So many pairs of two nodes without an edge in either direction, the same in every process."""
    with_itself = torch.arange(nodes).expand(2, -1)
    everything = Adjacency(*compressed(torch.cat([edges, edges.flip(0), with_itself], 1), nodes))
    found = torch.stack(negatives(everything, nodes, torch.arange(sum(counts)), seed=_SPLIT_SEED, epoch=0))
    return torch.split(found, counts, dim=1)
