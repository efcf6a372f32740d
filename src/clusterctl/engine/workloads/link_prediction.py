"""Link prediction with the user's own model, on a graph that their code loads: which edges are missing?

clusterctl submit ./my-job.toml --follow
torchrun --standalone --nproc-per-node 4 -m clusterctl.train link-prediction my-job.toml train.epochs=5

The data has splits of its own, as PyG's RandomLinkSplit makes them, or gets them from `own_links`. On a graph with
several types of nodes and edges, the edges of one type are predicted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterctl.engine.data.own_data import own_recipe, prepared
from clusterctl.engine.data.own_links import links_of
from clusterctl.engine.graph.links import LinkGraph, TypedLinkGraph
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objectives.own_link import OwnLinkPrediction
from clusterctl.engine.training.objectives.typed_link import TypedLinkPrediction
from clusterctl.shared.spec import LinkPredictionTrain

if TYPE_CHECKING:
    from clusterctl.shared.node.events import Context


def main(context: Context) -> None:
    train = context.train(LinkPredictionTrain)
    data = context.job.data
    recipe = own_recipe(data, links_of)
    with joined(context) as task:
        graph = prepared(task, either, recipe)
        where: dict[str, Any] = {"cache": data.cache_bytes, "split": data.is_split}
        if isinstance(graph, TypedLinkGraph):
            fit(TypedLinkPrediction(graph, train, task, **where), train, task)
        else:
            fit(OwnLinkPrediction(graph, train, task, **where), train, task)


def either(**record: Any) -> LinkGraph | TypedLinkGraph:
    """A prepared graph, of one type or of several."""
    return TypedLinkGraph(**record) if "edge_type" in record else LinkGraph(**record)
