"""Graph classification: graph isomorphism networks on a TU data set, such as IMDB-BINARY, which comes with the project.

    clusterctl submit imdb-gin --follow
    torchrun --standalone --nproc-per-node 2 -m clusterctl.train graph-classification jobs/imdb-gin.toml

Ten-fold cross-validation with honest selection: the epoch whose weights are tested is chosen on a validation part, not
on the test part, and every graph is tested once. Data sets are available at graphlearning.io.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import mean, pstdev
from typing import TYPE_CHECKING, Any, cast

import torch

from clusterctl.engine.data import tu
from clusterctl.engine.data.own_data import Given, own_recipe, prepared
from clusterctl.engine.graph.collection import Collection, joined_graphs
from clusterctl.engine.graph.storage import compressed
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.checkpoint import Checkpoints
from clusterctl.engine.training.graph_objective import GraphClassification, OwnGraphClassification
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.progress import Fold
from clusterctl.shared.spec import GraphClassificationTrain

if TYPE_CHECKING:
    from clusterctl.engine.graph.storage import Recipe
    from clusterctl.engine.training.objective import Accuracy
    from clusterctl.shared.node.events import Context
    from clusterctl.shared.spec import Data


def main(context: Context) -> None:
    train = context.train(GraphClassificationTrain)
    recipe_of_graphs = recipe(context.job.data)
    kind = OwnGraphClassification if context.job.has_own_model else GraphClassification
    with joined(context) as task:
        graphs = prepared(task, Collection, recipe_of_graphs)
        checkpoints = Checkpoints(task, train)
        scores = checkpoints.results  # of the completed folds, after a restart
        for fold in range(len(scores), train.folds):
            objective = kind(graphs, train, task, fold)
            scores.append(cast("Accuracy", fit(objective, train, task, Fold(fold + 1, train.folds), checkpoints)))
            train = replace(train, profile=())  # one fold's trace is enough
        accuracy, deviation = mean(score.value for score in scores), pstdev(score.value for score in scores)
        tested = sum(score.total for score in scores)
        task.metrics.write(test_accuracy=accuracy, test_accuracy_deviation=deviation, test_graphs=tested)
        if task.place.rank == 0:
            print(f"{train.folds} of 10 folds, {tested} graphs: test accuracy {accuracy:.4f} +- {deviation:.4f}")


def recipe(data: Data) -> Recipe[Collection]:
    """How to prepare the graphs, once for all ranks and runs. Raises TaskError."""
    if data.load is not None:
        return own_recipe(data, collection_of)
    return tu.recipe(data.root)


def collection_of(result: Any, name: str, notes: list[str] | None = None) -> Collection:
    """The graphs in a sequence of PyG's `Data`: `edge_index`, `y` and, if all have it, `x`. Raises TaskError."""
    given = Given(name, notes)
    hint = "return a data set or a list of torch_geometric.data.Data, each with edge_index and one class y"
    graphs = given.several(result, hint)
    if not graphs:
        raise given.wrong("the list is empty", hint)
    have_x = sum("x" in graph and graph.x is not None for graph in graphs if hasattr(graph, "to_dict"))
    if 0 < have_x < len(graphs):
        raise given.wrong(f"{have_x} of {len(graphs)} graphs have x", "give all of them x, or none")
    features, parts, labels = [], [], []
    for number, graph in enumerate(graphs):
        where = f"graph {number}: "
        if not hasattr(graph, "edge_index"):
            raise given.wrong(f"{where}it is {type(graph).__name__}, not Data", hint)
        if have_x:
            features.append(given.features(graph, where))
            if features[-1].size(1) != features[0].size(1):
                what = f"{where}x has {features[-1].size(1)} columns, and graph 0 has {features[0].size(1)}"
                raise given.wrong(what, "give all graphs the same features")
        nodes = len(features[-1]) if have_x else int(graph.num_nodes or 0)
        parts.append((nodes, given.edges(graph, nodes, nodes, where)))
        y = given.tensor(graph, "y", where)
        if y.numel() != 1:
            hint = "choose one: data.y = data.y.view(-1)[:1]"
            raise given.wrong(f"{where}y has {y.numel()} values, and a graph has one class", hint)
        labels.append(given.classes(y.reshape(1), where))
        if int(labels[-1]) < 0:
            raise given.wrong(f"{where}y is {int(labels[-1])}, which is no class", "leave graphs without a class out")
    given.unused(graphs, ["x", "y", "edge_index"])
    bounds, edges = joined_graphs(parts)
    num_nodes, y = int(bounds[-1]), torch.cat(labels)
    x = torch.cat(features) if have_x else torch.empty(num_nodes, 0)
    return Collection(bounds, *compressed(edges, num_nodes), x=x, y=y, num_classes=given.number_of_classes(y))
