"""Graph classification: graph isomorphism networks on a TU data set, such as IMDB-BINARY, which comes with the project.

    clusterctl submit imdb-gin --follow
    torchrun --standalone --nproc-per-node 2 -m clusterctl.train graph-classification jobs/imdb-gin.toml

Ten-fold cross-validation with honest selection: the epoch whose weights are tested is chosen on a validation part, not
on the test part, and every graph is tested once. Data sets are available at graphlearning.io.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import mean, pstdev
from types import MappingProxyType
from typing import TYPE_CHECKING

from clusterctl.engine.data import graph_sets
from clusterctl.engine.data.graph_sets import collection_of
from clusterctl.engine.data.own_data import own_recipe, prepared
from clusterctl.engine.graph.collection import Collection
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.checkpoint import Checkpoints
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objectives.graph import GraphClassification, OwnGraphClassification
from clusterctl.engine.training.progress import Fold
from clusterctl.shared.errors import Cause, TaskError
from clusterctl.shared.record.metrics import score_name
from clusterctl.shared.spec import GraphClassificationTrain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.engine.graph.storage import Recipe
    from clusterctl.shared.node.events import Context
    from clusterctl.shared.spec import Data


def main(context: Context) -> None:
    train = context.train(GraphClassificationTrain)
    recipe_of_graphs = recipe(context.job.data, train.reading)
    kind = OwnGraphClassification if context.job.has_own_model else GraphClassification
    with joined(context) as task:
        graphs = prepared(task, Collection, recipe_of_graphs)
        if graphs.splits:
            if train.folds not in (1, GraphClassificationTrain.folds):
                message = f"train.folds = {train.folds}, but the data has splits of its own"
                raise TaskError(message, "remove this key, or return one list of graphs from data.load", Cause.USER)
            fit(kind(graphs, train, task), train, task)
            return
        checkpoints = Checkpoints(task, train)
        scores = checkpoints.results  # of the completed folds, after a restart
        for fold in range(len(scores), train.folds):
            objective = kind(graphs, train, task, fold)
            scores.append(fit(objective, train, task, Fold(fold + 1, train.folds), checkpoints))
            train = replace(train, profile=())  # one fold's trace is enough
        value, deviation = mean(score.value for score in scores), pstdev(score.value for score in scores)
        tested, name = sum(score.total for score in scores), scores[0].name
        written = score_name("test", name, lower_is_better=scores[0].lower_is_better)
        numbers = {written: value, f"test_{name.lower()}_deviation": deviation, "test_graphs": tested}
        task.metrics.write(**numbers)
        if task.place.rank == 0:
            print(f"{train.folds} of 10 folds, {tested} graphs: test {name} {value:.4f} +- {deviation:.4f}")


def recipe(data: Data, reading: Mapping[str, str] = MappingProxyType({})) -> Recipe[Collection]:
    """How to prepare the graphs, once for all ranks and runs; `reading` is for `collection_of`. Raises TaskError."""
    if data.load is not None:
        return own_recipe(data, collection_of, **reading)
    return graph_sets.recipe(data.root)
