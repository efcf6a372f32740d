"""The objective of node classification with sampled neighbourhoods: cross-entropy, exact accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from clusterctl.errors import Cause, TaskError
from clusterctl.graph.convolutions import GcnConv, Network, SageConv
from clusterctl.graph.inference import first_aggregation, infer
from clusterctl.graph.sampling import NeighborSampler
from clusterctl.graph.static_sampling import StaticSampler, worth_static
from clusterctl.graph.storage import resident
from clusterctl.spec import Batches
from clusterctl.training.objective import PRECISIONS, Accuracy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.graph.blocks import Block
    from clusterctl.graph.storage import Graph
    from clusterctl.spec import NodeClassificationTrain, NodeTrain
    from clusterctl.task.task import Task
    from clusterctl.training.epoch_plan import Batch


class NodeClassification:
    """Trains a network to name the class of a node from its sampled neighbourhood."""

    unit = "nodes"

    def __init__(self, graph: Graph, train: NodeTrain, task: Task) -> None:
        self._precision = PRECISIONS[train.precision]
        torch.manual_seed(train.seed)
        widths = [graph.num_features, *[train.hidden_channels] * (len(train.fan_out) - 1), graph.num_classes]
        kind = {"sage": SageConv, "gcn": GcnConv}[train.model]
        self.model = Network(kind, widths, train.dropout).to(task.device, self._precision.weights)
        self.classes = graph.num_classes
        self._graph = resident(graph, task, self._precision.values)
        self._aggregated = first_aggregation(self.model, self._graph, task) if train.cache_first_aggregation else None
        fan_out = (*train.fan_out[:-1], 0) if train.cache_first_aggregation else train.fan_out
        static = worth_static(task.device, fan_out, Batches(train, task.place.world_size).per_rank)
        sampler: type[NeighborSampler | StaticSampler] = StaticSampler if static else NeighborSampler
        labor = chosen_labor(train)
        if train.cuda_graph:
            check_capturable(train, static=static, on_gpu=task.device.type == "cuda")
        self._sampler = sampler(self._graph, fan_out, train.seed, replace=train.replace, labor=labor)
        self._seed = train.seed
        self._task = task

    @property
    def seeds(self) -> Tensor:
        return self._graph.train

    def prepare(self, batch: Batch) -> list[Block]:
        """The sampled neighbourhood."""
        *outer, last = self._sampler.sample(batch.seeds, batch.epoch, batch.step)
        return [*(block.padded() for block in outer), last]

    def loss(self, batch: Batch, prepared: list[Block]) -> Tensor:
        """This rank's part of the step's mean cross-entropy; the parts of all ranks add up to it."""
        randomness = (self._seed, batch.epoch, batch.step)
        with self._precision.autocast(self._graph.x.device):
            self._task.clock.enter("gathering")
            gathered = self.model.gather(prepared[0], self._graph.x, self._aggregated)
            self._task.clock.enter("compute", "forward")
            outputs = self.model.transform(prepared, gathered, randomness)
        edges = sum(block.neighbors.numel() for block in prepared)
        self._task.clock.count(nodes=batch.total, edges=edges * dist.get_world_size())
        losses = F.cross_entropy(outputs.to(self._precision.weights), self._graph.y[batch.seeds], reduction="none")
        return (losses * batch.weights).sum() / batch.total

    def evaluate(self, splits: Sequence[str]) -> dict[str, Accuracy]:
        """The accuracy on each split from exact full-graph inference: every node is counted once, by one rank."""
        with self._precision.autocast(self._graph.x.device):
            own, outputs = infer(self.model, self._graph, self._task, self._aggregated)
        return accuracies(self._graph, own, outputs.argmax(1), splits)


def chosen_labor(train: NodeTrain | NodeClassificationTrain) -> bool:
    """Whether to sample by LABOR. Raises TaskError where that contradicts the rest, which torchrun lets through."""
    labor = train.sampling == "labor"
    if labor and train.replace:
        raise TaskError("train.sampling = labor draws without replacement", "set train.replace = false", Cause.USER)
    return labor


def check_capturable(train: NodeTrain, *, static: bool, on_gpu: bool) -> None:
    """Raise TaskError where a step cannot be captured as a CUDA graph."""
    why = ""
    if not on_gpu:
        why = "it trains on a CPU"
    elif train.sampling == "labor":
        why = "LABOR draws from windows that the host chooses"
    elif not static:
        why = f"the sizes of its samples are not known beforehand, with fan_out = {[*train.fan_out]}"
    if why:
        raise TaskError(f"train.cuda_graph cannot capture this training: {why}", "leave it out", Cause.USER)


def accuracies(graph: Graph, own: range, predicted: Tensor, splits: Sequence[str]) -> dict[str, Accuracy]:
    """The accuracy on each split, from the classes `predicted` for this rank's nodes `own`. A collective."""
    counts = torch.zeros(len(splits), 2, dtype=torch.int64, device=predicted.device)
    for split, count in zip(splits, counts, strict=True):
        nodes = getattr(graph, split)
        nodes = nodes[(nodes >= own.start) & (nodes < own.stop)]
        count[0] = (predicted[nodes - own.start] == graph.y[nodes]).sum()
        count[1] = nodes.numel()
    dist.all_reduce(counts)
    return {split: Accuracy(*count) for split, count in zip(splits, counts.tolist(), strict=True)}
