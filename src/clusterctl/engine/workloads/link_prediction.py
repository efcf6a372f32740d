"""Link prediction with the user's own model, on a graph that their code loads: which edges are missing?

clusterctl submit ./my-job.toml --follow
torchrun --standalone --nproc-per-node 4 -m clusterctl.train link-prediction my-job.toml train.epochs=5

The data has splits of its own, as PyG's RandomLinkSplit makes them, or gets them from `own_links`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.engine.data.own_data import own_recipe, prepared
from clusterctl.engine.data.own_links import link_graph
from clusterctl.engine.graph.links import LinkGraph
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objectives.own_link import OwnLinkPrediction
from clusterctl.shared.spec import LinkPredictionTrain

if TYPE_CHECKING:
    from clusterctl.shared.node.events import Context


def main(context: Context) -> None:
    train = context.train(LinkPredictionTrain)
    recipe = own_recipe(context.job.data, link_graph)
    with joined(context) as task:
        graph = prepared(task, LinkGraph, recipe)
        data = context.job.data
        fit(OwnLinkPrediction(graph, train, task, data.cache_bytes, split=data.is_split), train, task)
