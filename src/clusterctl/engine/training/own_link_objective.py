"""Link prediction with a user-defined model: cross-entropy with one negative per positive, exact AUC."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import own_slice
from clusterctl.engine.graph.features.hidden import own_rows
from clusterctl.engine.graph.features.placement import placed
from clusterctl.engine.graph.hops import sampled_hops
from clusterctl.engine.graph.inference import one_ahead
from clusterctl.engine.graph.links import both_ways, ends, how_often, negatives
from clusterctl.engine.graph.sampling import NeighborSampler
from clusterctl.engine.graph.storage import FeatureGraph
from clusterctl.engine.training.link_objective import Auc, auc
from clusterctl.engine.training.objective import link_loss
from clusterctl.engine.training.own_inference import OwnInference
from clusterctl.engine.training.own_model import OwnModel, OwnTraining, built
from clusterctl.engine.training.own_objective import OwnSampled, Sample
from clusterctl.shared.errors import Cause, TaskError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.engine.graph.features.sources import Features
    from clusterctl.engine.task.task import Task
    from clusterctl.engine.training.epoch_plan import Batch
    from clusterctl.shared.spec import LinkPredictionTrain

_PAIRS_AT_ONCE = 65536  # scored


@dataclass(frozen=True)
class LinkGraph(FeatureGraph):
    """A graph of the training split's edges: both the examples and the message edges.

    The other splits are pairs, sources in the first row, int32 [2, pairs]; `*_negatives` are equally many pairs without
    an edge in any split, in either direction.
    """

    val: Tensor
    val_negatives: Tensor
    test: Tensor
    test_negatives: Tensor


@dataclass(frozen=True)
class LinkSample(Sample):
    """A sample, and the pairs to score as places among the last rows."""

    pairs: Tensor  # int64 [2, pairs]


class OwnLinkPrediction(OwnSampled[LinkSample]):
    """Trains the model `train.model` to distinguish pairs with an edge from pairs without one.

    A step's own examples, their duplicates and their reverse edges carry no messages in that step, on any rank.
    """

    unit = "edges"
    classes = 2  # a pair with an edge, and one without

    def __init__(
        self, graph: LinkGraph, train: LinkPredictionTrain, task: Task, cache: int | None = None, *, split: bool = False
    ) -> None:
        """`cache` and `split` decide where the features are, see `placed`."""
        super().__init__(train, task)
        model = built(train.model, {"features": graph.num_features}, train.options)
        self.model = model.to(task.device, self._precision.weights)
        start = partial(how_often, graph)
        self._graph, self._features = placed(
            graph, task, self._precision.values, cache, start, train.fan_out, split=split
        )
        self._own = OwnModel(self.model, train.model, None)
        self._sampler = NeighborSampler(self._graph, (*train.fan_out, 0), train.seed, replace=train.replace)
        self._inference = OwnInference(self._own, self._graph, self._features, len(train.fan_out), task)
        self.own_training = OwnTraining(self.model, train.model, task)
        self._inference.warn_if_pieces_differ()

    @property
    def seeds(self) -> Tensor:
        """The training edges."""
        return torch.arange(self._graph.indices.numel(), device=self._graph.indices.device)

    def prepare(self, batch: Batch) -> LinkSample:
        """The batch's edges, then equally many negatives, with their neighbourhood."""
        others = negatives(self._graph, self._graph.num_nodes, batch.seeds, self._seed, batch.epoch)
        pairs = torch.cat([torch.stack(ends(self._graph, batch.seeds)), torch.stack(others)], 1)
        seeds, places = torch.unique(pairs, return_inverse=True)
        hidden = both_ways(self._graph, batch.everyone)
        blocks = self._sampler.sample(seeds, batch.epoch, batch.step, hidden)
        fetch = self._features.fetch(blocks[0].nodes)
        return LinkSample(fetch, sampled_hops(blocks, (self._seed, batch.epoch, batch.step)), places)

    def scores(self, prepared: LinkSample, gathered: Tensor, randomness: tuple[int, ...]) -> Tensor:
        rows = super().scores(prepared, gathered, randomness)
        return self._scores(*(rows.index_select(0, side) for side in prepared.pairs))

    def error(self, scores: Tensor, batch: Batch, prepared: LinkSample) -> Tensor:  # noqa: ARG002 - of the base class
        return link_loss(scores, batch.weights, batch.total)

    @torch.no_grad()
    def evaluate(self, splits: Sequence[str]) -> dict[str, Auc]:
        """The AUC on each split, with all neighbours: each pair is scored once, by one rank. A collective."""
        self.own_training.agree_on_buffers()
        own = own_slice(self._graph.num_nodes)
        with self._precision.autocast(self._task.device):
            rows = self._inference.of_all(self._rows(own))
            found = {
                split: auc(*(self._scored(rows, getattr(self._graph, name)) for name in (split, f"{split}_negatives")))
                for split in splits
            }
            rows.settle()
            return found

    def _rows(self, own: range) -> Tensor:
        """The model's outputs for this rank's nodes."""
        if self._own.by_layer:
            return self._inference.rows(own)
        nodes = torch.arange(own.start, own.stop, device=self._graph.indptr.device)
        parts = (rows for _, rows in self._inference.rows_at_once(nodes))
        first = next(parts, None)
        if first is None:  # this rank has no nodes
            return self._features.piece(0, 0)
        return own_rows(chain([first], parts), len(own), self._features.spill)

    def _scored(self, rows: Features, pairs: Tensor) -> Tensor:
        """The scores of this rank's slice of the pairs."""
        own = own_slice(pairs.size(1))
        parts = torch.split(pairs[:, own.start : own.stop].to(torch.int64), _PAIRS_AT_ONCE, dim=1)
        fetches = one_ahead((part, rows.fetch(part.flatten())) for part in parts)
        return torch.cat([self._scores(*torch.split(fetch.rows(), [part.size(1)] * 2)) for part, fetch in fetches])

    def _scores(self, sources: Tensor, targets: Tensor) -> Tensor:
        """The scores by the model's `score(sources, targets)`, or dot products. Raises TaskError."""
        score: Any = getattr(self.model, "score", None)
        scores = (sources * targets).sum(1) if score is None else score(sources, targets)
        if not isinstance(scores, Tensor) or tuple(scores.shape) != (len(sources),):
            given = f"a tensor {[*scores.shape]}" if isinstance(scores, Tensor) else type(scores).__name__
            message = (
                f"{self._own.name}: score gives {given}, where a number for each of {len(sources)} pairs is wanted"
            )
            raise TaskError(message, "for rows [pairs, channels] of sources and of targets: [pairs]", Cause.USER)
        return scores.to(self._precision.weights)
