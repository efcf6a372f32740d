"""PyG's Taobao data set: lines of user, item, category, behaviour, time, and the graph of the training events.

Generated events have the same proportion of users, items, categories and events, and tastes to learn. Every user and
every category has one of four tastes. Of ten events of a user, nine are with items of the user's taste, the others with
any item; items are drawn in proportion to popularity. Popularity and activity are lognormal.
"""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from clusterctl.engine.data.number_files import folder_of, states_of
from clusterctl.engine.graph.blocks import Adjacency
from clusterctl.engine.graph.hashing import Purpose, below, draws, stream
from clusterctl.engine.graph.links import negatives
from clusterctl.engine.graph.recommender import ITEM, OF_USER, TOGETHER, USER
from clusterctl.engine.graph.storage import Recipe, compressed
from clusterctl.engine.training.objectives.link import Interactions
from clusterctl.shared.errors import Cause, TaskError
from clusterctl.shared.record.files import open_regular, read_whole
from clusterctl.shared.spec.data_sizes import TAOBAO_EVENTS, TAOBAO_ITEMS, TAOBAO_USERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    from collections.abc import Callable


RAW_FILE = "UserBehavior.csv"
TRUTH_FILE = "truth.json"  # next to `raw`, if the data was generated
FIRST_SECOND, LAST_SECOND = (
    1511539200,
    1512316799,
)  # 25 November to 3 December 2017; others are ignored, as in PyG
BEHAVIOURS = (b"pv", b"cart", b"buy", b"fav")
_COLUMNS = 5
_BYTES_AT_ONCE = 1 << 25
_SPLIT_SEED = 0  # not the training's seed: all trainings share one split
_TENTHS = 10
_PRODUCTS_AT_ONCE = 20_000_000  # bounds the memory for a chunk of the co-occurrence matrix


class TaobaoEvents(NamedTuple):
    """Which user picked which item, both numbered from 0 in order of their ids; sorted by user, then item."""

    users: Numbers
    items: Numbers
    num_users: int
    num_items: int


def recipe(root: str | Path | None, together: int) -> Recipe[Interactions]:
    """How to prepare the data set in `root`, once for all ranks and runs. Raises TaskError."""
    identity = {**raw_identity(root), "together": together}
    folder = Path(identity["root"])
    return Recipe("taobao", identity, lambda _: interactions(read_events(folder), together, best_auc(folder)))


def raw_identity(root: str | Path | None) -> dict[str, Any]:
    """Identifies a data set: the location of its raw file, its size and time. Raises TaskError."""
    hint = f"set data.root to a folder with raw/{RAW_FILE}; generate one: clusterctl data generate taobao --root DIR"
    folder = folder_of(root, hint)
    return {"root": str(folder), **states_of(folder / "raw", (RAW_FILE,), hint)}


def best_auc(root: Path) -> float:
    """The value that the generator wrote next to the data; nan if unknown."""
    try:
        return float(json.loads(read_whole(root / TRUTH_FILE))["best_auc"])
    except (OSError, ValueError, KeyError, TypeError):
        return math.nan


def read_events(root: Path) -> TaobaoEvents:
    """The events of the nine days, without repeated lines. Unlike PyG's class, needs no pandas. Raises TaskError.

    Takes about 80 bytes of memory per line: 8 GB for the hundred million lines of the real data set.
    """
    path = root / "raw" / RAW_FILE
    chunks, rest = [], b""
    try:
        with open_regular(path) as file:
            while block := file.read(_BYTES_AT_ONCE):
                whole, newline, rest = (rest + block).rpartition(b"\n")
                if newline:
                    chunks.append(_numbers(whole))
            if rest:
                chunks.append(_numbers(rest))
        lines = np.concatenate(chunks)
    except (OSError, ValueError) as error:
        message = f"cannot read {path} as Taobao's events: {error}"
        raise TaskError(message, "is the raw file complete?", Cause.DATA) from error
    lines = lines[(lines[:, 4] >= FIRST_SECOND) & (lines[:, 4] <= LAST_SECOND)]
    if len(lines) == 0:
        raise TaskError(f"{path} has no events in the nine days", "is it the right file?", Cause.DATA)
    lines = lines[np.lexsort(lines.T[::-1])]  # by user, item, category, behaviour, time
    lines = lines[np.append(True, (lines[1:] != lines[:-1]).any(axis=1))]
    (user_ids, users), (item_ids, items) = (np.unique(lines[:, column], return_inverse=True) for column in (0, 1))
    return TaobaoEvents(users, items, len(user_ids), len(item_ids))


def _numbers(text: bytes) -> Numbers:
    """Lines as numbers [lines, 5]; behaviours become their index in `BEHAVIOURS`."""
    for number, name in enumerate(BEHAVIOURS):
        text = text.replace(b"," + name + b",", b",%d," % number)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy only warns, and stops, at text that is not a number
        try:
            numbers = np.fromstring(text.strip().replace(b"\r", b"").replace(b"\n", b","), dtype=np.int64, sep=",")
        except (DeprecationWarning, ValueError) as error:
            raise ValueError("a line is not user,item,category,behaviour,time") from error
    if len(numbers) % _COLUMNS:
        raise ValueError(f"its lines do not all have {_COLUMNS} columns")
    return numbers.reshape(-1, _COLUMNS)


def interactions(events: TaobaoEvents, together: int, best_auc: float) -> Interactions:
    """The graph of the training events with the pairs of the other splits, and their negatives."""
    users, items = torch.from_numpy(events.users), torch.from_numpy(events.items)
    tenth = below(draws(stream(Purpose.SPLIT, _SPLIT_SEED), users * events.num_items + items), torch.tensor(_TENTHS))
    training = tenth >= 2
    everything = Adjacency(*compressed(torch.stack([items, users]), events.num_users, events.num_items))
    of_user = compressed(torch.stack([items[training], users[training]]), events.num_users, events.num_items)
    pairs: dict[str, Any] = {
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
    # Ranges of items whose rows of the product have about the same cost.
    each = np.diff(by_user.indptr).astype(np.int64)[by_item.indices]
    products = np.append(0, each.cumsum())[by_item.indptr]  # of all items before this one
    cuts = np.searchsorted(products, np.arange(_PRODUCTS_AT_ONCE, products[-1], _PRODUCTS_AT_ONCE))
    bounds = np.unique([0, *cuts.tolist(), num_items]).tolist()
    offsets, sources = [np.zeros(1, dtype=np.int64)], []
    for part in (slice(first, last) for first, last in pairwise(bounds)):
        counts = (by_item[part] @ by_user).tocoo()
        kept = (counts.data >= at_least) & (counts.row + part.start != counts.col)
        rows, columns = counts.row[kept], counts.col[kept]
        sources.append(columns[np.lexsort((columns, rows))].astype(np.int32))
        offsets.append(offsets[-1][-1] + np.bincount(rows, minlength=part.stop - part.start).cumsum())
    return torch.from_numpy(np.concatenate(offsets)), torch.from_numpy(np.concatenate(sources))


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
