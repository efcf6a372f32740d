"""The objective of graph classification: cross-entropy on whole graphs, exact accuracy, one fold of ten as test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from clusterctl.errors import TaskError
from clusterctl.graph.gin import Gin, PlainGin, first_sum
from clusterctl.graph.hashing import Purpose, stream
from clusterctl.training.objective import Accuracy
from clusterctl.training.precision import PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.graph.collection import Collection, GraphBatch
    from clusterctl.spec import GraphClassificationTrain
    from clusterctl.task.task import Task
    from clusterctl.training.epoch_plan import Batch

PARTS = 10
_DEGREES = 128  # classes of the degree feature; the last stands for all above


class GraphClassification:
    """Trains a network to name the class of a graph; part `fold` of ten is the test split, the next the validation."""

    unit = "graphs"

    def __init__(self, collection: Collection, train: GraphClassificationTrain, task: Task, fold: int) -> None:
        self._precision = PRECISIONS[train.precision]
        self._graphs = collection.to(task.device)
        self._summed = first_sum(self._graphs, features_of(self._graphs, train.features).to(self._precision.weights))
        parts = stratified(collection.y, train.seed)
        self._splits = {
            "test": parts[fold],
            "val": parts[(fold + 1) % PARTS],
            "train": torch.cat([parts[(fold + other) % PARTS] for other in range(2, PARTS)]),
        }
        torch.manual_seed(train.seed)
        widths = (self._summed.size(1), train.hidden_channels, collection.num_classes)
        network = (
            Gin(*widths, train.layers, train.readout, train.dropout)
            if train.model == "gin"
            else PlainGin(*widths, train.layers, train.readout)
        )
        self.model = network.to(task.device, self._precision.weights)
        self._seed = train.seed
        self._clock = task.clock

    @property
    def seeds(self) -> Tensor:
        return self._splits["train"].to(self._summed.device)

    def prepare(self, batch: Batch) -> GraphBatch:
        """The batch's graphs as one."""
        return self._graphs.batch(batch.seeds)

    def loss(self, batch: Batch, prepared: GraphBatch) -> Tensor:
        """This rank's part of the step's mean cross-entropy; the parts of all ranks add up to it."""
        ranks = dist.get_world_size()
        self._clock.count(nodes=prepared.nodes.numel() * ranks, edges=prepared.incoming[1].numel() * ranks)
        scores = self._scores(prepared, (self._seed, batch.epoch, batch.step))
        losses = F.cross_entropy(scores, self._graphs.y[batch.seeds], reduction="none")
        return (losses * batch.weights).sum() / batch.total

    @torch.no_grad()
    def evaluate(self, splits: Sequence[str]) -> dict[str, Accuracy]:
        """The accuracy on each split: every graph is counted once, by one rank."""
        counts = torch.zeros(len(splits), 2, dtype=torch.int64, device=self._summed.device)
        for split, count in zip(splits, counts, strict=True):
            own = self._splits[split][dist.get_rank() :: dist.get_world_size()].to(self._summed.device)
            if own.numel():
                count[0] = (self._scores(self._graphs.batch(own), ()).argmax(1) == self._graphs.y[own]).sum()
                count[1] = own.numel()
        dist.all_reduce(counts)
        return {split: Accuracy(*count) for split, count in zip(splits, counts.tolist(), strict=True)}

    def _scores(self, batch: GraphBatch, randomness: tuple[int, ...]) -> Tensor:
        with self._precision.autocast(self._summed.device):
            self._clock.enter("gathering")
            rows = self._summed.index_select(0, batch.nodes)
            self._clock.enter("compute", "forward")
            scores: Tensor = self.model(batch, rows, randomness)
        return scores.to(self._precision.weights)


def stratified(y: Tensor, seed: int) -> list[Tensor]:
    """Ten parts of equal size (to one graph) that hold equal shares of each class, the same for the same seed."""
    generator = torch.Generator().manual_seed(stream(Purpose.SPLIT, seed))
    order = torch.randperm(y.numel(), generator=generator)
    by_class = order[y[order].argsort(stable=True)]
    return [by_class[part::PARTS] for part in range(PARTS)]


def features_of(graphs: Collection, kind: str) -> Tensor:
    """The features [nodes, channels]: one-hot "degree", constant "ones", or those "given" with the data set."""
    if kind == "degree":
        return F.one_hot(graphs.degree.clamp(max=_DEGREES - 1), _DEGREES).float()
    if kind == "ones":
        return torch.ones(graphs.num_nodes, 1, device=graphs.indptr.device)
    if graphs.x.size(1) == 0:
        raise TaskError("the data set gives its nodes no features", 'set train.features = "degree"')
    return graphs.x
