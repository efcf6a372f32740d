"""From events to a graph and three splits: nothing that is tested is seen while training.

Of all pairs of a user and an item 80 % are for training, 10 % for validation and 10 % for the test, by a hash of the
pair: a user takes an item more than once, and all these events go the same way. Only training events are edges, and
only they decide which items go together.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from clusterctl.graph.blocks import Adjacency
from clusterctl.graph.hashing import Purpose, below, draws, stream
from clusterctl.graph.links import negatives
from clusterctl.graph.recommender import ITEM, OF_USER, TOGETHER, USER
from clusterctl.graph.storage import Recipe, compressed
from clusterctl.training.link_objective import Interactions
from clusterctl.workloads.taobao_format import best_auc, raw_identity, read_events

if TYPE_CHECKING:
    from pathlib import Path

    from scipy.sparse import csr_array

    from clusterctl.workloads.taobao_format import TaobaoEvents

_SPLIT_SEED = 0  # not the training's: all trainings share one split
_TENTHS = 10
_PRODUCTS_AT_ONCE = 20_000_000  # bounds the memory of a piece of the co-occurrence matrix


def recipe(root: Path, together: int) -> Recipe[Interactions]:
    """How the data set in `root` is prepared."""
    identity = {**raw_identity(str(root)), "together": together}
    return Recipe("taobao", identity, lambda _: interactions(read_events(root), together, best_auc(root)))


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
    """`indptr` and `indices` between items that the same users took, counted `at_least` times.

    A user who took one item a times and the other b times counts a * b times, as in PyG's example.
    """
    from scipy.sparse import csr_array  # only one rank of all needs it

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
    """Ranges of items whose rows of the product cost about the same."""
    each = np.diff(by_user.indptr).astype(np.int64)[by_item.indices]
    products = np.append(0, each.cumsum())[by_item.indptr]  # of all items before this one
    cuts = np.searchsorted(products, np.arange(_PRODUCTS_AT_ONCE, products[-1], _PRODUCTS_AT_ONCE))
    bounds = np.unique([0, *cuts.tolist(), by_item.shape[0]]).tolist()
    return [slice(first, last) for first, last in pairwise(bounds)]
