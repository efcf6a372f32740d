"""Link prediction between users and items: binary cross-entropy with one negative per positive, exact `auc`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist

from clusterctl.engine.graph.blocks import own_slice
from clusterctl.engine.graph.embeddings import Route, ShardedTable
from clusterctl.engine.graph.links import ends, negatives, with_duplicates
from clusterctl.engine.graph.recommender import ITEM, OF_USER, USER, Recommender, fan_outs
from clusterctl.engine.graph.sampling import HeteroSampler
from clusterctl.engine.graph.storage import HeteroGraph
from clusterctl.engine.training.objective import Objective, link_loss

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.engine.graph.hops import HeteroSample
    from clusterctl.engine.task.task import Task
    from clusterctl.engine.training.epoch_plan import Batch
    from clusterctl.shared.spec import TaobaoTrain

_PAIRS_AT_ONCE = 16384  # scored


@dataclass(frozen=True)
class Interactions(HeteroGraph):
    """Interactions of users with items. The edges are the training split: both the examples and the message edges.

    The other splits are pairs, users in the first row, int32 [2, pairs]; `*_negatives` are equally many pairs without
    an edge in any split.
    """

    val: Tensor
    val_negatives: Tensor
    test: Tensor
    test_negatives: Tensor
    best_auc: float  # the best expected AUC of any model on generated data; nan if unknown


class Pairs(NamedTuple):
    """Pairs to score, with their sampled neighbourhood."""

    sample: HeteroSample
    route: Route  # to the rows of the sample's users, then items
    pairs: tuple[Tensor, Tensor]  # users and items as places among the seeds


class LinkModel(nn.Module):
    """The recommender, and one table for the rows of all users, then all items."""

    def __init__(self, network: Recommender, table: ShardedTable) -> None:
        super().__init__()
        self.network, self.table = network, table


class LinkPrediction(Objective[Pairs]):
    """Trains a network to distinguish pairs with an edge from pairs without one.

    A step's own examples and their duplicates carry no messages in that step, on any rank: all ranks exclude the edges
    of the global batch.
    """

    unit = "edges"
    classes = 2  # a pair with an edge, and one without
    model: LinkModel

    def __init__(self, data: Interactions, train: TaobaoTrain, task: Task) -> None:
        super().__init__(train, task)
        self._graph = data.to(task.device, self._precision.values)
        self._edges = self._graph.relation(OF_USER)
        self._splits = {
            split: [getattr(data, name).to(task.device, torch.int64) for name in (split, f"{split}_negatives")]
            for split in ("val", "test")
        }
        weights, lazy = self._precision.weights, train.row_optimizer == "touched-rows"
        network = Recommender(train.hidden_channels).to(weights)
        rows = data.num_nodes[USER] + data.num_nodes[ITEM]
        table = ShardedTable(rows, train.hidden_channels, train.seed, weights, lazy=lazy)
        self.model = LinkModel(network, table).to(task.device)
        fan_out = fan_outs(*train.fan_out)
        self._sampler = HeteroSampler(self._graph, fan_out, train.seed, replace=train.replace)

    @property
    def seeds(self) -> Tensor:
        """The training edges."""
        return torch.arange(self._edges.indices.numel(), device=self._edges.indices.device)

    def prepare(self, batch: Batch) -> Pairs:
        """The batch's edges, then equally many negatives, with their neighbourhood."""
        items, users = ends(self._edges, batch.seeds)
        others = negatives(self._edges, self._graph.num_nodes[ITEM], batch.seeds, self._seed, batch.epoch)
        hidden = with_duplicates(self._edges, batch.everyone)
        pairs = (torch.cat([users, others[1]]), torch.cat([items, others[0]]))
        return self.neighborhood(pairs, batch.epoch, batch.step, hidden)

    def gather(self, prepared: Pairs) -> Tensor:
        return self.model.table.fetch(prepared.route)

    def scores(self, prepared: Pairs, gathered: Tensor, randomness: tuple[int, ...]) -> Tensor:  # noqa: ARG002 - no dropout
        users, items = torch.split(gathered, [prepared.sample.nodes[kind].numel() for kind in (USER, ITEM)])
        return self.model.network(prepared.sample, users, items, prepared.pairs)  # type: ignore[no-any-return]

    def error(self, scores: Tensor, batch: Batch, prepared: Pairs) -> Tensor:  # noqa: ARG002 - of the base class
        return link_loss(scores, batch.weights, batch.total)

    @torch.no_grad()
    def evaluate(self, splits: Sequence[str]) -> dict[str, Auc]:
        """The AUC on each split, with full neighbourhoods: each pair is scored once, by one rank."""
        with self._precision.autocast(self._edges.indices.device):
            encoded = self.encoded()
            return {split: auc(*(self.scores_of(pairs, *encoded) for pairs in self._splits[split])) for split in splits}

    def encoded(self) -> tuple[Tensor, Tensor]:
        """All users and items, encoded."""
        nodes, table = self._graph.num_nodes, self.model.table
        own = own_slice(nodes[USER]), own_slice(nodes[ITEM])
        ids = [first + torch.arange(part.start, part.stop) for first, part in zip((0, nodes[USER]), own, strict=True)]
        rows = table.fetch(table.route(torch.cat(ids).to(table.rows.device)))
        users, items = torch.split(rows, [len(part) for part in own])
        return self.model.network.encode(self._graph, users, items, self._task)

    def scores_of(self, pairs: Tensor, users: Tensor, items: Tensor) -> Tensor:
        """The scores of this rank's slice of the pairs."""
        own = own_slice(pairs.size(1))
        parts = torch.split(pairs[:, own.start : own.stop], _PAIRS_AT_ONCE, dim=1)
        scores = [self.model.network.scores(users[of_users], items[of_items]) for of_users, of_items in parts]
        return torch.cat(scores).to(self._precision.weights)

    def neighborhood(self, pairs: tuple[Tensor, Tensor], epoch: int, step: int, hidden: Tensor | None = None) -> Pairs:
        """Pairs of users and items, with their neighbourhood sampled."""
        users, items = (torch.unique(side, return_inverse=True) for side in pairs)
        excluded = {} if hidden is None else {OF_USER: hidden}
        sample = self._sampler.sample({USER: users[0], ITEM: items[0]}, epoch, step, excluded)
        ids = torch.cat([sample.nodes[USER], sample.nodes[ITEM] + self._graph.num_nodes[USER]])
        return Pairs(sample, self.model.table.route(ids), (users[1], items[1]))


class Auc(NamedTuple):
    """How often a positive example scores above a negative one; ties count half."""

    half_wins: int  # sum over (positive, negative) pairs: 2 if the positive scores higher, 1 for a tie
    total: int  # positives
    negatives: int

    @property
    def lower_is_better(self) -> bool:
        return False

    @property
    def name(self) -> str:
        return "AUC"

    @property
    def value(self) -> float:
        pairs = self.total * self.negatives
        return self.half_wins / (2 * pairs) if pairs else 0.0


def auc(positive: Tensor, negative: Tensor) -> Auc:
    """The AUC over the scores of all ranks; each rank passes its own scores. A collective.

    Every rank gathers all negatives and counts the wins of its own positives: O(n log n) for n scores, in exact
    integers.
    """
    # The numbers of scores may differ between ranks, so each rank sends as many as the longest has.
    world = dist.get_world_size()
    lengths = torch.zeros(world, dtype=torch.int64, device=negative.device)
    lengths[dist.get_rank()] = negative.numel()
    dist.all_reduce(lengths)
    longest = int(lengths.max())
    padded = negative.new_zeros(longest)
    padded[: negative.numel()] = negative
    table = negative.new_empty(world, longest)
    dist.all_gather(list(table), padded)
    everywhere = torch.cat([row[:length] for row, length in zip(table, lengths.tolist(), strict=True)])
    below, positive = everywhere.sort().values, positive.contiguous()
    wins = torch.searchsorted(below, positive).sum() + torch.searchsorted(below, positive, right=True).sum()
    counts = torch.stack([wins, wins.new_tensor(positive.numel())])
    dist.all_reduce(counts)
    half_wins, positives = counts.tolist()
    return Auc(half_wins, positives, below.numel())
