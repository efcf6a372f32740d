"""Node classification with a user-defined or built-in model: any loss, any metric, exact."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import own_slice
from clusterctl.engine.graph.features.placement import placed
from clusterctl.engine.graph.hops import sampled_hops
from clusterctl.engine.training.losses import Loss
from clusterctl.engine.training.metrics import Metric
from clusterctl.engine.training.node_objective import sampler_of, seeds_of
from clusterctl.engine.training.objective import Objective
from clusterctl.engine.training.own_inference import OwnInference
from clusterctl.engine.training.own_model import OwnModel, OwnTraining, built, built_in
from clusterctl.shared.spec import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.engine.graph.features.sources import Fetch
    from clusterctl.engine.graph.hops import Hop
    from clusterctl.engine.graph.storage import Graph
    from clusterctl.engine.task.task import Task
    from clusterctl.engine.training.epoch_plan import Batch
    from clusterctl.engine.training.objective import Score
    from clusterctl.shared.spec import NodeClassificationTrain


@dataclass(frozen=True)
class Sample:
    """A sample: the feature rows, and the hops."""

    fetch: Fetch[Tensor]
    hops: list[Hop]


S = TypeVar("S", bound=Sample)


class OwnSampled(Objective[S]):
    """Trains the model `train.model` on sampled neighbourhoods."""

    own_training: OwnTraining
    _own: OwnModel

    def gather(self, prepared: S) -> Tensor:
        return self.rows_of(prepared.fetch)

    def scores(self, prepared: S, gathered: Tensor, randomness: tuple[int, ...]) -> Tensor:  # noqa: ARG002 - the hops have it
        return self._own.outputs(prepared.hops, gathered)

    def work(self, batch: Batch, prepared: S) -> tuple[int, int]:
        return batch.total, sum(hop.edge_index.size(1) for hop in prepared.hops)

    def where_it_breaks(self, prepared: S, gathered: Tensor) -> str:
        with self._precision.autocast(gathered.device):
            return self._own.where_it_breaks(prepared.hops, gathered)


class OwnNodeClassification(OwnSampled[Sample]):
    """Trains the model `train.model` to classify nodes."""

    unit = "nodes"

    def __init__(
        self, graph: Graph, train: NodeClassificationTrain, task: Task, cache: int | None = None, *, split: bool = False
    ) -> None:
        """`cache` and `split` decide where the features are, see `placed`."""
        super().__init__(train, task)
        outputs = graph.num_classes
        self.classes = outputs if train.loss == "cross_entropy" else 0
        sizes = {"features": graph.num_features, "classes": outputs}
        is_ours = train.model in BUILT_IN
        if is_ours:
            model = built_in(train.model, graph.num_features, outputs, len(train.fan_out), train.options)
        else:
            model = built(train.model, sizes, train.options)
        self.model = model.to(task.device, self._precision.weights)
        self._own = OwnModel(self.model, train.model, outputs)
        start = partial(seeds_of, graph)
        self._graph, self._features = placed(
            graph, task, self._precision.values, cache, start, train.fan_out, split=split
        )
        self._loss = Loss(train, self._graph.y, self._graph.train, outputs)
        self._metric = Metric(train, task.agreeing)
        for name in ("val", "test"):
            self._metric.check(self._graph.y[getattr(self._graph, name)], name)
        # A user-defined layer takes edges without padding, whose number is known only on the GPU.
        self._sampler = sampler_of(self._graph, (*train.fan_out, 0), train, task, may_be_static=is_ours)
        self._inference = OwnInference(self._own, self._graph, self._features, len(train.fan_out), task)
        self.own_training = OwnTraining(self.model, train.model, task)
        if not self._own.by_layer and task.place.rank == 0:
            print(f"{train.model} has no layer(i, hop, x): it is evaluated on whole neighbourhoods, which takes longer")
        if not is_ours:
            self._inference.warn_if_pieces_differ()

    @property
    def seeds(self) -> Tensor:
        return self._graph.train

    def prepare(self, batch: Batch) -> Sample:
        """The sampled neighbourhood."""
        blocks = self._sampler.sample(batch.seeds, batch.epoch, batch.step)
        fetch = self._features.fetch(blocks[0].nodes)
        return Sample(fetch, sampled_hops(blocks, (self._seed, batch.epoch, batch.step)))

    def error(self, scores: Tensor, batch: Batch, prepared: Sample) -> Tensor:  # noqa: ARG002 - of the base class
        return self._loss.of(scores, self._graph.y, batch)

    @torch.no_grad()
    def evaluate(self, splits: Sequence[str]) -> dict[str, Score]:
        """The score on each split with all neighbours: each node is evaluated once, by one rank. A collective."""
        self.own_training.agree_on_buffers()
        own = own_slice(self._graph.num_nodes)
        with self._precision.autocast(self._task.device):
            kept = self._inference.rows(own, self._kept) if self._own.by_layer else self._at_once(own, splits)
        scores = {}
        for split in splits:
            mine = self._of(split, own)
            scores[split] = self._metric.score(kept[mine - own.start], self._graph.y[mine], mine)
        return scores

    def _kept(self, rows: Tensor) -> Tensor:
        return self._metric.kept(rows.to(self._precision.weights), self._graph.y)

    def _of(self, split: str, own: range) -> Tensor:
        """The nodes of a split that are this rank's."""
        nodes: Tensor = getattr(self._graph, split)
        return nodes[(nodes >= own.start) & (nodes < own.stop)]

    def _at_once(self, own: range, splits: Sequence[str]) -> Tensor:
        """What the metric needs of this rank's nodes in the `splits`; zeros for other nodes."""
        kept = self._kept(torch.empty(0, self._own.classes or 0, device=self._graph.y.device))
        kept = kept.new_zeros(len(own), *kept.shape[1:])
        mine = torch.cat([self._of(split, own) for split in splits])
        for seeds, rows in self._inference.rows_at_once(mine):
            kept[seeds - own.start] = self._kept(rows)
        return kept
