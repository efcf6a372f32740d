"""Taobao: which item will a user take? Bipartite GraphSAGE on users and items, with an embedding for each of them.

    clusterctl submit taobao-generated --follow
    clusterctl submit taobao --set data.root=/data/Taobao --follow
    torchrun --standalone --nproc-per-node 2 -m clusterctl.workloads.taobao jobs/taobao-generated.toml

The embeddings are split over the ranks; a step moves only the rows that it touches between them.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.graph.storage import shared
from clusterctl.spec import TaobaoTrain
from clusterctl.task.task import joined
from clusterctl.training.link_objective import Interactions, LinkPrediction
from clusterctl.training.loop import fit
from clusterctl.workloads.generated import taobao_like
from clusterctl.workloads.standalone import run_alone
from clusterctl.workloads.taobao_format import raw_identity, read_events
from clusterctl.workloads.taobao_graph import interactions, recipe

if TYPE_CHECKING:
    from clusterctl.runs.context import Context
    from clusterctl.task.task import Task

_GENERATED_SEED = 0


def main(context: Context) -> None:
    train = context.train(TaobaoTrain)
    root = context.job.data.root
    folder = None if train.generated and root is None else Path(raw_identity(root)["root"])
    with joined(context) as task:
        data = shared_interactions(task, folder, train)
        score = fit(LinkPrediction(data, train, task), train, task)
        if not math.isnan(data.best_auc):
            task.metrics.write(best_possible_auc=data.best_auc)
            if task.place.rank == 0:
                print(f"test AUC {score.share:.4f}; the best possible on this data is {data.best_auc:.4f}")


def shared_interactions(task: Task, root: Path | None, train: TaobaoTrain) -> Interactions:
    """The graph and splits of the data in `root`, or of generated data; made once and shared by all ranks and runs."""
    if root is not None:
        return shared(task, Interactions, *recipe(root, train.together))

    def build(scratch: Path) -> Interactions:
        best = taobao_like.write(scratch, train.generated, _GENERATED_SEED)
        return interactions(read_events(scratch), train.together, best)

    return shared(task, Interactions, "taobao", {"generated": train.generated, "together": train.together}, build)


if __name__ == "__main__":
    run_alone("taobao", main)
