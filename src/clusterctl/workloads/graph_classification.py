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

from clusterctl.runs.stages import Stage
from clusterctl.task.task import joined
from clusterctl.training.checkpoint import Checkpoints
from clusterctl.training.graph_classification import GraphClassification
from clusterctl.training.loop import fit
from clusterctl.training.progress import Fold
from clusterctl.workloads.standalone import run_alone
from clusterctl.workloads.tu_format import raw_identity, shared_raw_graphs

if TYPE_CHECKING:
    from clusterctl.runs.events import Events
    from clusterctl.runs.layout import Attempt
    from clusterctl.runs.place import Place
    from clusterctl.runs.signals import StopRequest
    from clusterctl.spec import GraphClassificationTrain, Job
    from clusterctl.training.objective import Accuracy


def main(job: Job, place: Place, attempt: Attempt | None, events: Events, stop: StopRequest) -> None:
    train = cast("GraphClassificationTrain", job.train)
    identity = raw_identity(job.data.root)
    with joined(job, train.device, place, attempt, events, stop) as task:
        events.stage(Stage.LOADING)
        graphs = shared_raw_graphs(task, identity)
        saved = Checkpoints(task, train)
        scores = saved.results  # of the folds that are done, after a restart
        for fold in range(len(scores), train.folds):
            objective = GraphClassification(graphs, train, task, fold)
            scores.append(cast("Accuracy", fit(objective, train, task, Fold(fold + 1, train.folds), saved)))
            train = replace(train, profile=())  # one fold's trace is enough
        accuracy, deviation = mean(score.share for score in scores), pstdev(score.share for score in scores)
        tested = sum(score.total for score in scores)
        task.metrics.write(test_accuracy=accuracy, test_accuracy_deviation=deviation, test_graphs=tested)
        if place.rank == 0:
            print(f"{train.folds} of 10 folds, {tested} graphs: test accuracy {accuracy:.4f} +- {deviation:.4f}")


if __name__ == "__main__":
    run_alone("graph-classification", main)
