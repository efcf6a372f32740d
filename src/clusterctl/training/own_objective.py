"""The objective of node classification with a model of the user's own: cross-entropy, exact accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from clusterctl.graph.hops import sampled_hops, whole_hops, whole_neighborhoods
from clusterctl.graph.inference import own_slice, shared_rows
from clusterctl.graph.sampling import NeighborSampler
from clusterctl.graph.storage import resident
from clusterctl.training.node_objective import accuracies, chosen_labor
from clusterctl.training.objective import PRECISIONS
from clusterctl.training.own_model import OwnModel, built
from clusterctl.training.own_training import OwnTraining

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.graph.gat import Gat
    from clusterctl.graph.hops import Hop
    from clusterctl.graph.storage import Graph
    from clusterctl.spec import NodeClassificationTrain
    from clusterctl.task.task import Task
    from clusterctl.training.epoch_plan import Batch
    from clusterctl.training.objective import Accuracy
    from clusterctl.training.state import PartState

_MOST_EDGES = 1 << 19  # of a piece in evaluation: layers of PyG's write down a row for each
_SEEDS_AT_ONCE = 128  # in evaluation, where a model can only do all layers at once


class Prepared(NamedTuple):
    """A sample: the rows of features to read, and the hops."""

    nodes: Tensor  # int64 [rows]
    hops: list[Hop]


class OwnNodeClassification:
    """Trains the model that `train.model` names."""

    unit = "nodes"

    def __init__(self, graph: Graph, train: NodeClassificationTrain, task: Task) -> None:
        self._precision = PRECISIONS[train.precision]
        torch.manual_seed(train.seed)
        self.classes = graph.num_classes
        model = built(train.model, graph.num_features, self.classes, len(train.fan_out), train.options)
        self.model = model.to(task.device, self._precision.weights)
        self._own = OwnModel(self.model, train.model, self.classes)
        self._graph = resident(graph, task, self._precision.values)
        labor = chosen_labor(train)
        self._sampler = NeighborSampler(
            self._graph, (*train.fan_out, 0), train.seed, replace=train.replace, labor=labor
        )
        self._everything = (-1,) * len(train.fan_out)
        self._seed, self._task = train.seed, task
        self._training = OwnTraining(self.model, train.model, task.place.rank)
        if not self._own.by_layer and task.place.rank == 0:
            print(f"{train.model} has no layer(i, hop, x): it is evaluated on whole neighbourhoods, which takes longer")

    @property
    def seeds(self) -> Tensor:
        return self._graph.train

    def prepare(self, batch: Batch) -> Prepared:
        """The sampled neighbourhood."""
        blocks = self._sampler.sample(batch.seeds, batch.epoch, batch.step)
        return Prepared(blocks[0].nodes, sampled_hops(blocks, (self._seed, batch.epoch, batch.step)))

    def loss(self, batch: Batch, prepared: Prepared) -> Tensor:
        """This rank's part of the step's mean cross-entropy; the parts of all ranks add up to it."""
        self._training.begin_step(self._seed, batch.epoch, batch.step)
        self._task.clock.enter("gathering")
        x = self._graph.x.index_select(0, prepared.nodes)
        self._task.clock.enter("compute", "forward")
        with self._precision.autocast(x.device):
            outputs = self._own.outputs(prepared.hops, x)
        edges = sum(hop.edge_index.size(1) for hop in prepared.hops)
        self._task.clock.count(nodes=batch.total, edges=edges * dist.get_world_size())
        losses = F.cross_entropy(outputs.to(self._precision.weights), self._graph.y[batch.seeds], reduction="none")
        loss = (losses * batch.weights).sum() / batch.total
        if loss.device.type == "cpu" and not loss.isfinite():  # on a GPU the question would wait for the step
            with self._precision.autocast(x.device):
                place = self._own.where_it_breaks(prepared.hops, x)
            raise self._training.no_number(place)
        return loss

    @torch.no_grad()
    def evaluate(self, splits: Sequence[str]) -> dict[str, Accuracy]:
        """The accuracy on each split with all neighbours: every node is counted once, by one rank. A collective."""
        self._training.agree_on_buffers()
        own = own_slice(self._graph.num_nodes)
        with self._precision.autocast(self._graph.x.device):
            if self._own.by_sending:
                predicted = self._by_sending(own)
            elif self._own.by_layer:
                predicted = self._by_layer(own)
            else:
                predicted = self._at_once(own, splits)
        return accuracies(self._graph, own, predicted, splits)

    def state(self) -> PartState:
        return self._training.state()

    def load(self, state: PartState) -> None:
        self._training.load(state)

    def _by_sending(self, own: range) -> Tensor:
        """The classes of this rank's nodes: in every layer what each node sends is computed once, and shared."""
        model = cast("Gat", self.model)
        rows = self._graph.x[own.start : own.stop]
        for number in range(len(self._everything)):
            sending = model.send(number, rows)
            sent = shared_rows([sending], sending, self._graph.num_nodes, self._task)
            pieces = whole_neighborhoods(self._graph, own, _MOST_EDGES)
            rows = torch.cat([model.receive(number, edges, sent, rows[part]) for part, edges in pieces])
        return rows.argmax(1)

    def _by_layer(self, own: range) -> Tensor:
        """The classes of this rank's nodes: every layer for all nodes, before the next."""
        table, depth = self._graph.x, len(self._everything)
        for number in range(depth):
            last = number == depth - 1
            hops = whole_hops(self._graph, own, _MOST_EDGES)
            parts = [self._own.layer(number, hop, table.index_select(0, hop.nodes), last=last) for hop in hops]
            rows = torch.cat(parts) if parts else table.new_zeros(0, 1)
            if not last:
                table = shared_rows([rows], self._like(rows), self._graph.num_nodes, self._task)
        return rows.argmax(1)

    def _at_once(self, own: range, splits: Sequence[str]) -> Tensor:
        """The classes of this rank's nodes in the `splits`: all layers, for a few nodes at a time."""
        sampler = NeighborSampler(self._graph, (*self._everything, 0), 0)
        predicted = torch.full((len(own),), -1, dtype=torch.int64, device=self._graph.y.device)
        for split in splits:
            nodes = getattr(self._graph, split)
            for seeds in nodes[(nodes >= own.start) & (nodes < own.stop)].split(_SEEDS_AT_ONCE):
                blocks = sampler.sample(seeds, 0, 0)
                x = self._graph.x.index_select(0, blocks[0].nodes)
                predicted[seeds - own.start] = self._own.outputs(sampled_hops(blocks, None), x).argmax(1)
        return predicted

    def _like(self, rows: Tensor) -> Tensor:
        """An empty table as wide as rank 0's: a rank without nodes does not know how wide a layer is."""
        width = torch.tensor([rows.size(1)])
        dist.broadcast(width, 0)
        return rows.new_empty(0, int(width))
