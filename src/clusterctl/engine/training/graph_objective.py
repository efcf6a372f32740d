"""The objective of graph classification: cross-entropy on whole graphs, exact accuracy, one fold of ten as test.

With a network of ours, or with the user's own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from clusterctl.engine.graph.blocks import moved
from clusterctl.engine.graph.gin import Copied, Distinct, Gin, PlainGin, first_sum
from clusterctl.engine.graph.hashing import Purpose, stream
from clusterctl.engine.training.objective import Accuracy, Objective, class_loss
from clusterctl.engine.training.own_model import OwnTraining, built, described
from clusterctl.shared.errors import Cause, TaskError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.engine.graph.collection import Collection, GraphBatch
    from clusterctl.engine.task.task import Task
    from clusterctl.engine.training.epoch_plan import Batch
    from clusterctl.shared.spec import GraphClassificationTrain

PARTS = 10
_DEGREES = 128  # classes of the degree feature; the last one includes all higher degrees


class Graphs(NamedTuple):
    """Several graphs as one disconnected graph, and the model's input rows for their nodes; on the task's device."""

    batch: GraphBatch
    rows: Copied
    y: Tensor  # int64 [graphs]
    weights: Tensor  # [graphs]: 0 for padding


class GraphClassification(Objective[Graphs]):
    """Trains a network to classify graphs; part `fold` of ten is the test split, the next one the validation split."""

    unit = "graphs"

    def __init__(self, collection: Collection, train: GraphClassificationTrain, task: Task, fold: int) -> None:
        super().__init__(train, task)
        self._graphs, self._device = collection, task.device
        parts = stratified(collection.y, train.seed)
        self._splits = {
            "test": parts[fold],
            "val": parts[(fold + 1) % PARTS],
            "train": torch.cat([parts[(fold + other) % PARTS] for other in range(2, PARTS)]),
        }
        self.classes = collection.num_classes
        features = features_of(self._graphs, train.features).to(self._precision.weights)
        table = self.table_of(features)
        self._table = replace(table, rows=table.rows.to(task.device))
        network = self.network_of(train, features.size(1))
        self.model = network.to(task.device, self._precision.weights)

    def table_of(self, features: Tensor) -> Distinct:
        """The model's input, computed from the features [nodes, channels]."""
        return first_sum(self._graphs, features)

    def network_of(self, train: GraphClassificationTrain, features: int) -> nn.Module:
        widths = (features, train.hidden_channels, self.classes)
        if train.model == "gin":
            return Gin(*widths, train.layers, train.readout, train.dropout)
        return PlainGin(*widths, train.layers, train.readout)

    @property
    def seeds(self) -> Tensor:
        return self._splits["train"]

    def prepare(self, batch: Batch) -> Graphs:
        """The batch's graphs as one disconnected graph."""
        return self._cut(batch.seeds, batch.weights)

    def gather(self, prepared: Graphs) -> Copied:
        return prepared.rows

    def scores(self, prepared: Graphs, gathered: Copied, randomness: tuple[int, ...]) -> Tensor:
        """The model's scores of the graphs [graphs, classes]."""
        return self.model(prepared.batch, gathered, randomness)  # type: ignore[no-any-return]

    def work(self, batch: Batch, prepared: Graphs) -> tuple[int, int]:  # noqa: ARG002 - of the base class
        graphs = prepared.batch
        return graphs.nodes.numel() * dist.get_world_size(), graphs.incoming[1].numel()

    def error(self, scores: Tensor, batch: Batch, prepared: Graphs) -> Tensor:
        return class_loss(scores, prepared.y, prepared.weights, batch.total)

    @torch.no_grad()
    def evaluate(self, splits: Sequence[str]) -> dict[str, Accuracy]:
        """The accuracy on each split: each graph is evaluated once, by one rank."""
        counts = torch.zeros(len(splits), 2, dtype=torch.int64, device=self._device)
        for split, count in zip(splits, counts, strict=True):
            own = self._splits[split][dist.get_rank() :: dist.get_world_size()]
            if own.numel():
                graphs = self._cut(own, torch.ones(own.numel()))
                count[0] = (self.scored(graphs, graphs.rows, ()).argmax(1) == graphs.y).sum()
                count[1] = own.numel()
        dist.all_reduce(counts)
        return {split: Accuracy(*count) for split, count in zip(splits, counts.tolist(), strict=True)}

    def _cut(self, graphs: Tensor, weights: Tensor) -> Graphs:
        batch = self._graphs.batch(graphs)
        select = self._table.select if isinstance(self.model, Gin) else self._table.select_all
        answers = moved((self._graphs.y[graphs], weights), self._device)
        return Graphs(batch.to(self._device), select(batch.nodes), *answers)


class OwnGraphClassification(GraphClassification):
    """Trains the user's model `train.model`: `forward(x, edge_index, batch)`, as in PyG."""

    own_training: OwnTraining

    def __init__(self, collection: Collection, train: GraphClassificationTrain, task: Task, fold: int) -> None:
        super().__init__(collection, train, task, fold)
        self._name = train.model
        self.own_training = OwnTraining(self.model, train.model, task)
        if task.place.rank == 0 and fold == 0 and collection.x.size(1) and train.features != "given":
            print(f'the features x of the data are not used: train.features = "{train.features}", not "given"')

    def table_of(self, features: Tensor) -> Distinct:
        return Distinct(features, torch.arange(len(features), device=features.device))

    def network_of(self, train: GraphClassificationTrain, features: int) -> nn.Module:
        return built(train.model, {"features": features, "classes": self.classes}, train.options)

    def scores(self, prepared: Graphs, gathered: Copied, randomness: tuple[int, ...]) -> Tensor:  # noqa: ARG002 - torch draws here
        batch, x = prepared.batch, gathered.rows
        offsets, sources = batch.incoming
        targets = _owners(offsets, len(sources))
        of_graph = _owners(batch.bounds, len(batch.nodes))
        try:
            scores: Tensor = self.model(x, torch.stack([sources, targets]), of_graph)
        except Exception as error:
            shapes = f"x {[*x.shape]}, {len(sources)} edges, {len(batch.bounds) - 1} graphs"
            message = f"{self._name}: forward fails on {shapes}: {described(error)}"
            raise TaskError(message, cause=Cause.USER) from error
        wanted = (len(batch.bounds) - 1, self.classes)
        if not isinstance(scores, Tensor) or tuple(scores.shape) != wanted:
            given = f"a tensor {[*scores.shape]}" if isinstance(scores, Tensor) else type(scores).__name__
            message = f"{self._name}: forward gives {given}, where [graphs, classes] = {[*wanted]} is wanted"
            raise TaskError(message, "read the nodes out by graph, as with global_add_pool(x, batch)", Cause.USER)
        return scores

    def where_it_breaks(self, prepared: Graphs, gathered: Copied) -> str:  # noqa: ARG002 - of the base class
        return "forward" if gathered.rows.isfinite().all() else ""

    def evaluate(self, splits: Sequence[str]) -> dict[str, Accuracy]:
        self.own_training.agree_on_buffers()
        return super().evaluate(splits)


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


def _owners(bounds: Tensor, rows: int) -> Tensor:
    """int64 [rows]: the range, from `bounds[i]` up to `bounds[i + 1]`, that contains each of the `rows`."""
    numbers = torch.arange(len(bounds) - 1, device=bounds.device)
    return numbers.repeat_interleave(bounds.diff(), output_size=rows)
