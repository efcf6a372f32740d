"""Reddit: GraphSAGE on one large graph in the raw format of PyG's Reddit data set.

clusterctl submit reddit --set data.root=/data/Reddit --follow
torchrun --standalone --nproc-per-node 4 -m clusterctl.workloads.reddit jobs/cora.toml train.epochs=5
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from clusterctl.runs.stages import Stage
from clusterctl.task.task import joined
from clusterctl.training.loop import fit
from clusterctl.training.node_classification import NodeClassification
from clusterctl.workloads.reddit_format import raw_identity, shared_raw_graph
from clusterctl.workloads.standalone import run_alone

if TYPE_CHECKING:
    from clusterctl.runs.events import Events
    from clusterctl.runs.layout import Attempt
    from clusterctl.runs.place import Place
    from clusterctl.runs.signals import StopRequest
    from clusterctl.spec import Job, NodeTrain


def main(job: Job, place: Place, attempt: Attempt | None, events: Events, stop: StopRequest) -> None:
    train = cast("NodeTrain", job.train)
    identity = raw_identity(job.data.root)
    with joined(job, train.device, place, attempt, events, stop) as task:
        events.stage(Stage.LOADING)
        fit(NodeClassification(shared_raw_graph(task, identity), train, task), train, task)


if __name__ == "__main__":
    run_alone("reddit", main)
