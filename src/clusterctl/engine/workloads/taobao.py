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
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import Adjacency
from clusterctl.engine.graph.hashing import Purpose, below, draws, stream
from clusterctl.engine.graph.links import negatives
from clusterctl.engine.graph.recommender import ITEM, OF_USER, TOGETHER, USER
from clusterctl.engine.graph.storage import Recipe, compressed, shared
from clusterctl.engine.task.task import joined
from clusterctl.engine.training.link_objective import Interactions, LinkPrediction
from clusterctl.engine.training.loop import fit
from clusterctl.engine.workloads.generated import taobao_like
from clusterctl.engine.workloads.taobao_format import best_auc, raw_identity, read_events
from clusterctl.shared.spec import TaobaoTrain

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from clusterctl.engine.workloads.taobao_format import TaobaoEvents
    from clusterctl.shared.node.events import Context

_GENERATED_SEED = 0
_SPLIT_SEED = 0  # not the training's seed: all trainings share one split
_TENTHS = 10
_PRODUCTS_AT_ONCE = 20_000_000  # bounds the memory for a chunk of the co-occurrence matrix


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
                print(f"test AUC {score.share:.4f}; the best possible on this data is {data.best_auc:.4f}")


def recipe(root: str | Path | None, together: int) -> Recipe[Interactions]:
    """How to prepare the data set in `root`, once for all ranks and runs. Raises TaskError."""
    identity = {**raw_identity(root), "together": together}
    folder = Path(identity["root"])
    return Recipe("taobao", identity, lambda _: interactions(read_events(folder), together, best_auc(folder)))


def generated(train: TaobaoTrain) -> Recipe[Interactions]:
    """How to generate and prepare data like Taobao's."""

    def build(scratch: Path) -> Interactions:
        best = taobao_like.write(scratch, train.generated, _GENERATED_SEED)
        return interactions(read_events(scratch), train.together, best)

    return Recipe("taobao", {"generated": train.generated, "together": train.together}, build)


def interactions(events: TaobaoEvents, together: int, best_auc: float) -> Interactions:
    """The graph of the training events with the pairs of the other splits, and their negatives."""
    users, items = torch.from_numpy(events.users), torch.from_numpy(events.items)
    tenth = below(draws(stream(Purpose.SPLIT, _SPLIT_SEED), users * events.num_items + items), torch.tensor(_TENTHS))
    training = tenth >= 2
    everything = Adjacency(*compressed(torch.stack([items, users]), events.num_users, events.num_items))
    of_user = compressed(torch.stack([items[training], users[training]]), events.num_users, events.num_items)
    pairs = {
        split: torch.stack([users[tenth == part], items[tenth == part]]).to(torch.int32)
        for part, split in enumerate(("val", "test"))
    }
    counts = [pairs["val"].size(1), pairs["test"].size(1)]
    other_items, other_users = negatives(
        everything, events.num_items, torch.arange(sum(counts)), seed=_SPLIT_SEED, epoch=0
    )
    val_negatives, test_negatives = torch.split(torch.stack([other_users, other_items]).to(torch.int32), counts, dim=1)
    items_together = co_occurrence(*of_user, events.num_items, together)
    return Interactions(
        num_nodes={USER: events.num_users, ITEM: events.num_items},
        indptr={OF_USER: of_user[0], TOGETHER: items_together[0]},
        indices={OF_USER: of_user[1], TOGETHER: items_together[1]},
        x={},
        **pairs,
        val_negatives=val_negatives,
        test_negatives=test_negatives,
        best_auc=best_auc,
    )


def co_occurrence(indptr: Tensor, indices: Tensor, num_items: int, at_least: int) -> tuple[Tensor, Tensor]:
    """`indptr` and `indices` between items that the same users picked at least `at_least` times.

    A user who picked one item a times and the other b times counts a * b times, as in PyG's example.
    """
    from scipy.sparse import csr_array  # only one rank needs it

    ones = np.ones(indices.numel(), dtype=np.int32)
    shape = (indptr.numel() - 1, num_items)
    by_user = csr_array((ones, indices.numpy(), indptr.numpy()), shape=shape, copy=True)
    by_user.sum_duplicates()  # in place
    by_item = by_user.T.tocsr()
    offsets, sources = [np.zeros(1, dtype=np.int64)], []
    for part in _parts(by_user, by_item):
        counts = (by_item[part] @ by_user).tocoo()
        kept = (counts.data >= at_least) & (counts.row + part.start != counts.col)
        rows, columns = counts.row[kept], counts.col[kept]
        sources.append(columns[np.lexsort((columns, rows))].astype(np.int32))
        offsets.append(offsets[-1][-1] + np.bincount(rows, minlength=part.stop - part.start).cumsum())
    return torch.from_numpy(np.concatenate(offsets)), torch.from_numpy(np.concatenate(sources))


def _parts(by_user: csr_array, by_item: csr_array) -> list[slice]:
    """Ranges of items whose rows of the product have about the same cost."""
    each = np.diff(by_user.indptr).astype(np.int64)[by_item.indices]
    products = np.append(0, each.cumsum())[by_item.indptr]  # of all items before this one
    cuts = np.searchsorted(products, np.arange(_PRODUCTS_AT_ONCE, products[-1], _PRODUCTS_AT_ONCE))
    bounds = np.unique([0, *cuts.tolist(), by_item.shape[0]]).tolist()
    return [slice(first, last) for first, last in pairwise(bounds)]
