"""Graph classification: graph isomorphism networks on a TU data set, such as IMDB-BINARY, which comes with the project.

    clusterctl submit imdb-gin --follow
    torchrun --standalone --nproc-per-node 2 -m clusterctl.workloads.graph_classification jobs/imdb-gin.toml

Ten-fold cross-validation with honest selection: a validation part, not the tested one, chooses the epoch whose weights
are tested, and every graph is tested once.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import mean, pstdev
from typing import TYPE_CHECKING, cast

from clusterctl.spec import GraphClassificationTrain
from clusterctl.task.task import joined
from clusterctl.training.checkpoint import Checkpoints
from clusterctl.training.graph_objective import GraphClassification
from clusterctl.training.loop import fit
from clusterctl.training.training_log import Fold
from clusterctl.workloads.standalone import run_alone
from clusterctl.workloads.tu_format import raw_identity, shared_raw_graphs

if TYPE_CHECKING:
    from clusterctl.runs.context import Context
    from clusterctl.training.objective import Accuracy


def main(context: Context) -> None:
    train = context.train(GraphClassificationTrain)
    identity = raw_identity(context.job.data.root)
    with joined(context) as task:
        graphs = shared_raw_graphs(task, identity)
        checkpoints = Checkpoints(task, train)
        scores = checkpoints.results  # of the folds that are done, after a restart
        for fold in range(len(scores), train.folds):
            objective = GraphClassification(graphs, train, task, fold)
            scores.append(cast("Accuracy", fit(objective, train, task, Fold(fold + 1, train.folds), checkpoints)))
            train = replace(train, profile=())  # one fold's trace is enough
        accuracy, deviation = mean(score.share for score in scores), pstdev(score.share for score in scores)
        tested = sum(score.total for score in scores)
        task.metrics.write(test_accuracy=accuracy, test_accuracy_deviation=deviation, test_graphs=tested)
        if task.place.rank == 0:
            print(f"{train.folds} of 10 folds, {tested} graphs: test accuracy {accuracy:.4f} +- {deviation:.4f}")


if __name__ == "__main__":
    run_alone("graph-classification", main)
