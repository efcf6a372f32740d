"""The objective of graph classification with networks of ours: on whole graphs, one fold of ten as test, exact scores.

`OwnGraphClassification` extends it to a user's own model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from clusterctl.engine.graph.blocks import moved, own_slice
from clusterctl.engine.graph.convolutions import Copied, Gin, PlainGin, first_sum
from clusterctl.engine.graph.hashing import Purpose, stream
from clusterctl.engine.training.losses import Loss
from clusterctl.engine.training.metrics import Metric
from clusterctl.engine.training.objective import Objective
from clusterctl.shared.errors import Cause, TaskError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterctl.engine.graph.collection import Collection, GraphBatch
    from clusterctl.engine.task.task import Task
    from clusterctl.engine.training.epoch_plan import Batch
    from clusterctl.engine.training.objective import Score
    from clusterctl.shared.spec import GraphClassificationTrain

PARTS = 10
_DEGREES = 128  # classes of the degree feature; the last one includes all higher degrees
_LARGEST_PIECE = 1 << 18  # nodes and edges that evaluation takes at once


class Graphs(NamedTuple):
    """Several graphs as one disconnected graph, on the task's device."""

    given: Any  # what the network takes: `Summed`, or of a user's model its arguments
    nodes: int
    edges: int
    y: Tensor  # [graphs] or [graphs, targets]
    weights: Tensor  # [graphs]: 0 for padding


class Summed(NamedTuple):
    """What our networks take: a batch, and the input rows of its nodes."""

    batch: GraphBatch
    rows: Copied


class GraphClassification(Objective[Graphs]):
    """Trains a network on whole graphs, whose splits the data has, or part `fold` of ten is for testing, the next one
    for validation."""

    unit = "graphs"

    def __init__(self, collection: Collection, train: GraphClassificationTrain, task: Task, fold: int = 0) -> None:
        super().__init__(train, task)
        self._graphs, self._device = collection, task.device
        self._splits = collection.splits or splits_of(collection.y, train.seed, fold)
        self.classes = collection.num_classes if train.loss == "cross_entropy" else 0
        self._outputs = collection.num_classes
        self._loss = Loss(train, collection.y, self._splits["train"], self._outputs)
        self._metric = Metric(train, task.agreeing)
        self._metric.check(collection.y, self._splits.__getitem__)
        self.model = self.made(train).to(task.device, self._precision.weights)

    def made(self, train: GraphClassificationTrain) -> nn.Module:
        """The network, and what it needs of the data's features."""
        kind = "degree" if train.features == "auto" else train.features
        features = features_of(self._graphs, kind).to(self._precision.weights)
        table = first_sum(self._graphs, features)
        self._table = replace(table, rows=table.rows.to(self._device))
        widths = (features.size(1), train.hidden_channels, self._outputs)
        if train.model == "gin":
            return Gin(*widths, train.layers, train.readout, train.dropout)
        return PlainGin(*widths, train.layers, train.readout)

    @property
    def seeds(self) -> Tensor:
        return self._splits["train"]

    def prepare(self, batch: Batch) -> Graphs:
        """The batch's graphs as one disconnected graph."""
        return self._cut(batch.seeds, batch.weights)

    def gather(self, prepared: Graphs) -> Any:
        return prepared.given

    def scores(self, prepared: Graphs, gathered: Any, randomness: tuple[int, ...]) -> Tensor:  # noqa: ARG002
        """The model's scores of the graphs [graphs, outputs]."""
        return self.model(gathered.batch, gathered.rows, randomness)  # type: ignore[no-any-return]

    def work(self, batch: Batch, prepared: Graphs) -> tuple[int, int]:  # noqa: ARG002 - of the base class
        return prepared.nodes * dist.get_world_size(), prepared.edges

    def error(self, scores: Tensor, batch: Batch, prepared: Graphs) -> Tensor:
        total = self._loss.total(self._graphs.y[batch.everyone])
        return self._loss(scores, prepared.y, prepared.weights, total)

    @torch.no_grad()
    def evaluate(self, splits: Sequence[str]) -> dict[str, Score]:
        """The score on each split: each graph is evaluated once, by one rank, in batches of bounded size."""
        found: dict[str, Score] = {}
        for split in splits:
            own = own_slice(self._splits[split].numel())
            graphs = self._splits[split][own.start : own.stop]
            kept = [self._kept(torch.empty(0, self._outputs, device=self._device))]
            for piece in pieces_of(graphs, self._graphs.sizes[graphs]):
                cut = self._cut(piece, torch.ones(piece.numel()))
                kept.append(self._kept(self.scored(cut, self.gather(cut), ())))
            (y,) = moved([self._graphs.y[graphs]], self._device)
            found[split] = self._metric.score(torch.cat(kept), y, torch.arange(own.start, own.stop))
        return found

    def _kept(self, scores: Tensor) -> Tensor:
        return self._metric.kept(scores.to(self._precision.weights), self._graphs.y)

    def _cut(self, graphs: Tensor, weights: Tensor) -> Graphs:
        batch = self._graphs.batch(graphs)
        select = self._table.select if isinstance(self.model, Gin) else self._table.select_all
        y, weights = moved((self._graphs.y[graphs], weights), self._device)
        given = Summed(batch.to(self._device), select(batch.nodes))
        return Graphs(given, batch.nodes.numel(), batch.incoming[1].numel(), y, weights)


def pieces_of(graphs: Tensor, sizes: Tensor) -> Iterator[Tensor]:
    """Consecutive graphs, of these sizes, in pieces of at most twice `_LARGEST_PIECE`, or of one larger graph."""
    starts = sizes.cumsum(0) - sizes
    of_piece = starts.div(_LARGEST_PIECE, rounding_mode="floor")
    counts = torch.unique_consecutive(of_piece, return_counts=True)[1]
    yield from torch.split(graphs, counts.tolist())


def splits_of(y: Tensor, seed: int, fold: int) -> dict[str, Tensor]:
    """Part `fold` of ten as test split, the next one for validation, the others for training; stratified by classes."""
    parts = stratified(y if y.dim() == 1 else torch.zeros(len(y)), seed)
    return {
        "test": parts[fold],
        "val": parts[(fold + 1) % PARTS],
        "train": torch.cat([parts[(fold + other) % PARTS] for other in range(2, PARTS)]),
    }


def stratified(y: Tensor, seed: int) -> list[Tensor]:
    """Ten parts whose sizes and class counts differ by at most one graph; they depend only on the seed."""
    generator = torch.Generator().manual_seed(stream(Purpose.SPLIT, seed))
    order = torch.randperm(y.numel(), generator=generator)
    by_class = order[y[order].argsort(stable=True)]
    return [by_class[part::PARTS] for part in range(PARTS)]


def features_of(graphs: Collection, kind: str) -> Tensor:
    """The features [nodes, channels]: one-hot "degree", constant "ones", or those "given" with the data set."""
    if kind == "degree":
        return F.one_hot(graphs.degree.clamp(max=_DEGREES - 1), _DEGREES).float()
    if kind == "ones":
        return torch.ones(graphs.num_nodes, 1)
    if graphs.x.size(1) == 0:
        raise TaskError("the data set has no node features", 'set train.features = "degree"', Cause.DATA)
    return graphs.x
