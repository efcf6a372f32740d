"""Link prediction with the user's own model, on a graph that their code loads: which edges are missing?

clusterctl submit ./my-job.toml --follow
torchrun --standalone --nproc-per-node 4 -m clusterctl.train link-prediction my-job.toml train.epochs=5

Of all pairs of nodes with an edge, 85 % are for training, 5 % for validation and 10 % for testing, by a hash of the
undirected pair: an edge, its copies and the reverse edge are in the same split. Only training edges carry messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from clusterctl.engine.data.own_data import Given, own_recipe, prepared
from clusterctl.engine.graph.blocks import Adjacency
from clusterctl.engine.graph.hashing import Purpose, below, draws, stream
from clusterctl.engine.graph.links import negatives
from clusterctl.engine.graph.storage import compressed
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.own_link_objective import LinkGraph, OwnLinkPrediction
from clusterctl.shared.spec import LinkPredictionTrain

if TYPE_CHECKING:
    from clusterctl.shared.node.events import Context

_SPLIT_SEED = 0  # not the training's seed: all trainings share one split
_TWENTIETHS, _VAL, _TEST = 20, 1, 2


def main(context: Context) -> None:
    train = context.train(LinkPredictionTrain)
    recipe = own_recipe(context.job.data, link_graph)
    with joined(context) as task:
        graph = prepared(task, LinkGraph, recipe)
        data = context.job.data
        fit(OwnLinkPrediction(graph, train, task, data.cache_bytes, split=data.is_split), train, task)


def link_graph(result: Any, name: str, notes: list[str] | None = None) -> LinkGraph:
    """The graph in PyG's `Data`, or in a data set of one, with `x` and `edge_index`, split. Raises TaskError."""
    given = Given(name, notes)
    data = given.single(result, "Data")
    x = given.features(data)
    nodes = len(x)
    edges = given.edges(data, nodes, nodes)
    given.unused([data], ["x", "edge_index"])
    proper = edges[0] != edges[1]
    if loops := edges.size(1) - int(proper.sum()):
        given.notes.append(f"{loops} self loops in edge_index are not used")
    edges = edges[:, proper]
    # Which twentieth of all pairs each edge belongs to.
    low, high = edges.min(0).values, edges.max(0).values
    part = below(draws(stream(Purpose.SPLIT, _SPLIT_SEED), low * nodes + high), torch.tensor(_TWENTIETHS))
    splits = {
        split: torch.unique(edges[:, (part >= first) & (part < end)], dim=1)
        for split, first, end in (("val", 0, _VAL), ("test", _VAL, _VAL + _TEST))
    }
    empty = [split for split, pairs in splits.items() if pairs.numel() == 0]
    if empty or not bool((part >= _VAL + _TEST).any()):
        what = f"edge_index has {edges.size(1)} edges, too few for {', '.join(empty) or 'training'}"
        raise given.wrong(what, "5 % of the edges are for validation, and 10 % for testing")
    # As many pairs for each split without an edge in either direction.
    with_itself = torch.arange(nodes).expand(2, -1)
    everything = Adjacency(*compressed(torch.cat([edges, edges.flip(0), with_itself], 1), nodes))
    counts = [pairs.size(1) for pairs in splits.values()]
    found = torch.stack(negatives(everything, nodes, torch.arange(sum(counts)), seed=_SPLIT_SEED, epoch=0))
    others = torch.split(found, counts, dim=1)
    return LinkGraph(
        *compressed(edges[:, part >= _VAL + _TEST], nodes),
        x=x,
        val=splits["val"].int(),
        val_negatives=others[0].int(),
        test=splits["test"].int(),
        test_negatives=others[1].int(),
    )
