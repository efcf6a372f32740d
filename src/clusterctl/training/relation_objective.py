"""Node classification on a graph with several types of nodes and edges: cross-entropy, exact accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from clusterctl.errors import Cause, TaskError
from clusterctl.graph.features.hidden import shared_rows
from clusterctl.graph.hops import whole_neighborhoods
from clusterctl.graph.rgat import Rgat, fan_outs, layer_hops, relations_by_layer
from clusterctl.graph.sampling import HeteroSampler
from clusterctl.graph.slices import own_slice
from clusterctl.graph.storage import resident_relations
from clusterctl.training.losses import class_loss
from clusterctl.training.node_objective import accuracies
from clusterctl.training.objective import PRECISIONS
from clusterctl.training.own_model import options_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.graph.rgat import LayerHops
    from clusterctl.graph.storage import LabelledHeteroGraph
    from clusterctl.spec import NodeClassificationTrain
    from clusterctl.task.task import Task
    from clusterctl.training.epoch_plan import Batch
    from clusterctl.training.objective import Accuracy

_MOST_EDGES = 1 << 19  # per piece, in evaluation


class RelationSample(NamedTuple):
    """A sample: its nodes by type, and the input of each layer."""

    nodes: dict[str, Tensor]
    hops: list[LayerHops]


class RelationNodeClassification:
    """Trains a relational attention network to classify nodes from their sampled neighbourhoods."""

    unit = "nodes"

    def __init__(self, graph: LabelledHeteroGraph, train: NodeClassificationTrain, task: Task) -> None:
        if train.sampling != "uniform":
            raise TaskError('model "rgat" samples uniformly', 'set train.sampling = "uniform"', Cause.USER)
        self._precision = PRECISIONS[train.precision]
        self._options = options_of(train.model, train.options)
        by_layer = relations_by_layer(list(graph.indptr), graph.node_type, len(train.fan_out))
        bare = {kind for relation in by_layer[0] for kind in (relation[0], relation[2])} - graph.x.keys()
        if bare:
            raise TaskError(f"nodes of type {', '.join(sorted(bare))} have no features", "", Cause.DATA)
        self.classes = graph.num_classes
        self._type = graph.node_type
        torch.manual_seed(train.seed)
        widths = {kind: x.size(1) for kind, x in graph.x.items()}
        self.model = Rgat(widths, self.classes, by_layer, self._options).to(task.device, self._precision.weights)
        self._graph = resident_relations(graph, task, self._precision.values)
        self._sampler = HeteroSampler(self._graph, fan_outs(by_layer, train.fan_out), train.seed, replace=train.replace)
        self._seed, self._task = train.seed, task

    @property
    def seeds(self) -> Tensor:
        return self._graph.train

    def prepare(self, batch: Batch) -> RelationSample:
        """The sampled neighbourhood."""
        sample = self._sampler.sample({self._type: batch.seeds}, batch.epoch, batch.step)
        return RelationSample(sample.nodes, layer_hops(sample, self_loops=self._options.self_loops))

    def loss(self, batch: Batch, prepared: RelationSample) -> Tensor:
        """This rank's part of the step's mean cross-entropy; the parts of all ranks add up to it."""
        self._task.clock.enter("compute", "forward")
        randomness = (self._seed, batch.epoch, batch.step)
        with self._precision.autocast(self._graph.y.device):
            outputs = self.model(prepared.hops, prepared.nodes, self._graph.x, randomness)[self._type]
        edges = sum(own.edges.columns.numel() for hop in prepared.hops for own in hop.relations.values())
        self._task.clock.count(nodes=batch.total, edges=edges * dist.get_world_size())
        scores = outputs.to(self._precision.weights)
        return class_loss(scores, self._graph.y[batch.seeds], batch.weights, batch.total)

    @torch.no_grad()
    def evaluate(self, splits: Sequence[str]) -> dict[str, Accuracy]:
        """The accuracy on each split with all neighbours: each node is counted once, by one rank. A collective."""
        own = own_slice(self._graph.num_nodes[self._type])
        with self._precision.autocast(self._graph.y.device):
            predicted = self._infer().argmax(1)
        return accuracies(self._graph, own, predicted, splits)

    def _infer(self) -> Tensor:
        """The last layer's rows of this rank's nodes, one layer at a time for all nodes. A collective.

        The nodes' messages in a relation are computed once and shared, one relation at a time.
        """
        graph, model = self._graph, self.model
        own = {kind: own_slice(count) for kind, count in graph.num_nodes.items()}
        rows = {kind: x[own[kind].start : own[kind].stop] for kind, x in graph.x.items()}
        for i, relations in enumerate(model.relations):
            received: dict[str, list[Tensor]] = {}
            for relation in relations:
                source, _, target = relation
                sending = model.of(i, relation).send(rows[source])
                sent = shared_rows([sending], sending, graph.num_nodes[source], self._task)
                pieces = whole_neighborhoods(graph.relation(relation), own[target], _MOST_EDGES)
                parts = [model.receive(i, relation, edges, sent, rows[target][part]) for part, edges in pieces]
                received.setdefault(target, []).append(torch.cat(parts))
            rows = {kind: model.joined(i, parts) for kind, parts in received.items()}
        return rows[self._type]
