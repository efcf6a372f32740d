"""Small graphs of users and items, with isolated ones and repeated edges."""

from __future__ import annotations

import math

import torch

from clusterctl.engine.graph.recommender import ITEM, OF_USER, TOGETHER, USER
from clusterctl.engine.graph.storage import compressed
from clusterctl.engine.training.link_objective import Interactions


def random_shop(users: int = 40, items: int = 60, edges: int = 400, seed: int = 0) -> Interactions:
    """Every tenth user and item has no edge; some edges come twice."""
    random = torch.Generator().manual_seed(seed)
    pairs = torch.stack([torch.randint(count, (edges,), generator=random) for count in (items, users)])
    pairs = torch.cat([pairs, pairs[:, : edges // 5]], dim=1)
    pairs = pairs[:, (pairs % 10 != 0).all(0)]
    together = torch.randint(items, (2, 4 * items), generator=random)
    together = together[:, (together[0] != together[1]) & (together % 10 != 0).all(0)].unique(dim=1)
    of_user, of_items = compressed(pairs, users, items), compressed(together, items)
    splits = {}
    for number, name in enumerate(("val", "test")):
        splits[name] = torch.stack(
            [torch.randint(count, (25,), generator=random, dtype=torch.int32) for count in (users, items)]
        )
        splits[f"{name}_negatives"] = splits[name].flip(1) * (number + 1) % min(users, items)
    return Interactions(
        num_nodes={USER: users, ITEM: items},
        indptr={OF_USER: of_user[0], TOGETHER: of_items[0]},
        indices={OF_USER: of_user[1], TOGETHER: of_items[1]},
        x={},
        best_auc=math.nan,
        **splits,
    )
