"""Reddit: GraphSAGE on one large graph in the raw format of PyG's Reddit data set.

clusterctl submit reddit --set data.root=/data/Reddit --follow
torchrun --standalone --nproc-per-node 4 -m clusterctl.workloads.reddit jobs/cora.toml train.epochs=5
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.spec import NodeTrain
from clusterctl.task.task import joined
from clusterctl.training.loop import fit
from clusterctl.training.node_objective import NodeClassification
from clusterctl.workloads.reddit_format import raw_identity, shared_raw_graph
from clusterctl.workloads.standalone import run_alone

if TYPE_CHECKING:
    from clusterctl.runs.context import Context


def main(context: Context) -> None:
    train = context.train(NodeTrain)
    identity = raw_identity(context.job.data.root)
    with joined(context) as task:
        graph = shared_raw_graph(task, identity)
        fit(NodeClassification(graph, train, task), train, task)


if __name__ == "__main__":
    run_alone("reddit", main)
