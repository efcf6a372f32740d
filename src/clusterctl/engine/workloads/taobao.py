"""Taobao: which item will a user pick? Bipartite GraphSAGE on users and items, with an embedding for each of them.

    clusterctl submit taobao-generated --follow
    clusterctl submit taobao --set data.root=/data/Taobao --follow
    torchrun --standalone --nproc-per-node 2 -m clusterctl.train taobao jobs/taobao-generated.toml

The embeddings are sharded over the ranks; a step transfers only the rows that it uses.

No test data leaks into training: of all user-item pairs, 80 % are for training, 10 % for validation and 10 % for
testing, by a hash of the pair: a user may pick an item more than once, and all these events are in the same split. Only
training events are edges, and only they decide which items go together.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from clusterctl.engine.data import taobao
from clusterctl.engine.data.taobao import interactions, read_events, recipe
from clusterctl.engine.graph.storage import Recipe, shared
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.loop import fit
from clusterctl.engine.training.objectives.link import Interactions, LinkPrediction
from clusterctl.shared.spec import TaobaoTrain

if TYPE_CHECKING:
    from pathlib import Path

    from clusterctl.shared.node.events import Context

_GENERATED_SEED = 0


def main(context: Context) -> None:
    train = context.train(TaobaoTrain)
    root = context.job.data.root
    prepared = generated(train) if train.generated and root is None else recipe(root, train.together)
    with joined(context) as task:
        data = shared(task, Interactions, *prepared)
        score = fit(LinkPrediction(data, train, task), train, task)
        if not math.isnan(data.best_auc):
            task.metrics.write(best_possible_auc=data.best_auc)
            if task.place.rank == 0:
                print(f"test AUC {score.value:.4f}; the best possible on this data is {data.best_auc:.4f}")


def generated(train: TaobaoTrain) -> Recipe[Interactions]:
    """How to generate and prepare data like Taobao's."""

    def build(scratch: Path) -> Interactions:
        best = taobao.write(scratch, train.generated, _GENERATED_SEED)
        return interactions(read_events(scratch), train.together, best)

    return Recipe("taobao", {"generated": train.generated, "together": train.together}, build)
