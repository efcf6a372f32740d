"""Events like Taobao's at any scale: the same proportion of users, items, categories and events, and tastes to learn.

Every user and every category has one of four tastes. Of ten events of a user, nine are with items of the user's taste,
the others with any item; items are drawn in proportion to popularity. Popularity and activity are lognormal.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from clusterctl.engine.data.taobao import BEHAVIOURS, FIRST_SECOND, LAST_SECOND, RAW_FILE, TRUTH_FILE
from clusterctl.shared.spec.data_sizes import TAOBAO_EVENTS, TAOBAO_ITEMS, TAOBAO_USERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CATEGORIES = 9_439  # in the real data set
BEHAVIOUR_SHARES = (0.896, 0.055, 0.020, 0.029)  # page views, carts, purchases, favourites
TASTES, OWN_TASTE = 4, 0.9
_ACTIVITY_SIGMA, _POPULARITY_SIGMA = 0.8, 1.0
_FIRST_ID = 1_000_000  # ids of equal width, like nearly all real ones
_EVENTS_AT_ONCE = 1 << 20
_JUDGED = 1_000_000  # pairs of each kind to compute the best possible AUC


@dataclass(frozen=True)
class Market:
    """The ground truth of the events."""

    events_of: Tensor  # int64 [users]
    user_taste: Tensor  # int64 [users]
    item_category: Tensor  # int64 [items]
    item_taste: Tensor  # int64 [items]
    popularity: Tensor  # float64 [items]; sums to 1

    def rate(self, users: Tensor, items: Tensor) -> Tensor:
        """The expected number of events of each pair, float64."""
        of_taste = torch.zeros(TASTES, dtype=torch.float64).index_add_(0, self.item_taste, self.popularity)
        alike = self.user_taste[users] == self.item_taste[items]
        own = torch.where(alike, OWN_TASTE / of_taste[self.item_taste[items]], 0.0)
        return self.events_of[users] * self.popularity[items] * (own + 1 - OWN_TASTE)


def market(scale: float, seed: int) -> Market:
    """Users, items and their tastes, at `scale` times the real numbers."""
    random = torch.Generator().manual_seed(seed)
    users, items = max(TASTES, round(TAOBAO_USERS * scale)), max(TASTES, round(TAOBAO_ITEMS * scale))
    categories = max(TASTES, round(CATEGORIES * scale))
    activity = torch.randn(users, generator=random, dtype=torch.float64).mul_(_ACTIVITY_SIGMA).exp_()
    popularity = torch.randn(items, generator=random, dtype=torch.float64).mul_(_POPULARITY_SIGMA).exp_()
    others = torch.randint(categories, (max(0, items - categories),), generator=random)
    item_category = torch.cat([torch.arange(categories), others])[:items]  # every category has an item
    ends = (activity.cumsum(0) / activity.sum() * max(1, round(TAOBAO_EVENTS * scale))).round().to(torch.int64)
    return Market(
        events_of=ends.diff(prepend=ends.new_zeros(1)),
        user_taste=torch.randint(TASTES, (users,), generator=random),
        item_category=item_category,
        item_taste=item_category % TASTES,
        popularity=popularity / popularity.sum(),
    )


def events(truth: Market, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Users and items of all events in chunks (int64), sorted by user."""
    random = torch.Generator().manual_seed(seed + 1)
    order = truth.item_taste.argsort(stable=True)  # the items of a taste are contiguous
    line = truth.popularity[order].cumsum(0)
    ends = line[truth.item_taste.bincount(minlength=TASTES).cumsum(0) - 1]
    begins = torch.cat([ends.new_zeros(1), ends[:-1]])
    bounds = truth.events_of.cumsum(0)
    for first in range(0, int(bounds[-1]), _EVENTS_AT_ONCE):
        numbers = torch.arange(first, min(first + _EVENTS_AT_ONCE, int(bounds[-1])))
        users = torch.searchsorted(bounds, numbers, right=True)
        taste = truth.user_taste[users]
        own = torch.rand(users.numel(), generator=random) < OWN_TASTE
        low, high = torch.where(own, begins[taste], 0.0), torch.where(own, ends[taste], line[-1])
        position = low + torch.rand(users.numel(), generator=random, dtype=torch.float64) * (high - low)
        yield users, order[torch.searchsorted(line, position).clamp_(max=order.numel() - 1)]


def best_possible_auc(truth: Market, seed: int) -> float:
    """How often the true rate of a pair with an event exceeds that of a random pair without one (ties count half)."""
    random = torch.Generator().manual_seed(seed + 2)
    every = -(-int(truth.events_of.sum()) // _JUDGED)
    positive = torch.cat([truth.rate(users[::every], items[::every]) for users, items in events(truth, seed)])
    users = torch.randint(truth.events_of.numel(), (_JUDGED,), generator=random)
    items = torch.randint(truth.popularity.numel(), (_JUDGED,), generator=random)
    rates = truth.rate(users, items)
    absent = torch.rand(_JUDGED, generator=random, dtype=torch.float64) < torch.exp(-rates)
    below = rates[absent].sort().values
    wins = torch.searchsorted(below, positive) + torch.searchsorted(below, positive, right=True)
    return float(wins.to(torch.float64).mean() / (2 * below.numel()))


def write(folder: Path, scale: float, seed: int, progress: Callable[[int, int], None] = lambda *_: None) -> float:
    """Write the raw file and the truth into `folder`; returns the best possible AUC.

    Memory grows with the users and items, not the events. `progress` is called with the events done and their total.
    """
    truth = market(scale, seed)
    total = int(truth.events_of.sum())
    random = np.random.default_rng(seed + 3)
    raw = folder / "raw" / RAW_FILE
    raw.parent.mkdir(parents=True, exist_ok=True)
    done = 0
    with raw.open("wb") as file:
        for users, items in events(truth, seed):
            file.write(_lines(users.numpy(), items.numpy(), truth.item_category[items].numpy(), random))
            done += users.numel()
            progress(done, total)
    best = best_possible_auc(truth, seed)
    (folder / TRUTH_FILE).write_text(json.dumps({"best_auc": best, "scale": scale, "seed": seed}) + "\n")
    return best


def _lines(users: np.ndarray, items: np.ndarray, categories: np.ndarray, random: np.random.Generator) -> bytes:
    """The events as text, formatted digit by digit for all lines at once."""
    names = np.zeros((len(BEHAVIOURS), max(map(len, BEHAVIOURS))), dtype=np.uint8)
    for row, name in zip(names, BEHAVIOURS, strict=True):
        row[: len(name)] = np.frombuffer(name, dtype=np.uint8)
    kinds = random.choice(len(BEHAVIOURS), len(users), p=BEHAVIOUR_SHARES)
    times = random.integers(FIRST_SECOND, LAST_SECOND + 1, len(users))
    comma, newline = (np.full((len(users), 1), ord(sign), dtype=np.uint8) for sign in ",\n")
    ids = [_digits(numbers + _FIRST_ID, 7) for numbers in (users, items, categories)]
    columns = [column for part in (*ids, names[kinds], _digits(times, 10)) for column in (part, comma)]
    text = np.concatenate([*columns[:-1], newline], axis=1)
    written: bytes = text[text != 0].tobytes()
    return written


def _digits(numbers: np.ndarray, width: int) -> np.ndarray:
    """The decimal digits as ASCII [numbers, width]; every number has this width."""
    powers = 10 ** np.arange(width - 1, -1, -1)
    return (numbers[:, None] // powers % 10 + ord("0")).astype(np.uint8)
