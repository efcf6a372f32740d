"""Node classification on a graph with several types of nodes and edges: any loss, any metric, exact.

Evaluation infers all nodes layer by layer, split over the ranks (`infer`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from clusterctl.engine.graph.attention import Rgat, fan_outs, layer_hops, relations_by_layer
from clusterctl.engine.graph.blocks import Neighborhoods, own_slice
from clusterctl.engine.graph.embeddings import Embeddings, WithEmbeddings
from clusterctl.engine.graph.features.placement import placed_by_type
from clusterctl.engine.graph.hops import whole_neighborhoods
from clusterctl.engine.graph.inference import (
    NODES_AT_ONCE_FROM_DISK,
    own_piece,
    own_rows,
    part_of,
    received,
    sent_by_all,
    trimmed,
)
from clusterctl.engine.graph.sampling import HeteroSampler
from clusterctl.engine.training.losses import Loss
from clusterctl.engine.training.metrics import Metric
from clusterctl.engine.training.objective import Objective
from clusterctl.engine.training.objectives.node import measured
from clusterctl.engine.training.own.model import options_of
from clusterctl.shared.errors import Cause, TaskError
from clusterctl.shared.spec.forward import OF_EDGES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from clusterctl.engine.graph.attention import GatConv, LayerHops
    from clusterctl.engine.graph.embeddings import WantedRows
    from clusterctl.engine.graph.features.placement import Tables
    from clusterctl.engine.graph.features.sources import Features, FetchAhead
    from clusterctl.engine.graph.inference import Piece
    from clusterctl.engine.graph.storage import HeteroGraph, LabelledHeteroGraph
    from clusterctl.engine.task.task import Task
    from clusterctl.engine.training.epoch_plan import Batch
    from clusterctl.engine.training.objective import Score
    from clusterctl.shared.spec import LinkPredictionTrain, NodeClassificationTrain


class RelationSample(NamedTuple):
    """A sample: its nodes by type, the input of each layer, and their features if these are not in memory."""

    nodes: dict[str, Tensor]
    hops: list[LayerHops]
    fetch: FetchAhead[Tables, Tables] | None
    wanted: WantedRows | None  # of types without features


class RelationNodeClassification(Objective[RelationSample]):
    """Trains a relational attention network to classify nodes from their sampled neighbourhoods."""

    unit = "nodes"

    def __init__(
        self,
        graph: LabelledHeteroGraph,
        train: NodeClassificationTrain,
        task: Task,
        cache: int | None = None,
        *,
        split: bool = False,
    ) -> None:
        """`cache` and `split` decide where the features are, see `placed_by_type`."""
        if train.sampling != "uniform":
            raise TaskError('model "rgat" samples uniformly', 'set train.sampling = "uniform"', Cause.USER)
        super().__init__(train, task)
        self._options = options_of(train.model, train.options)
        by_layer = relations_by_layer(list(graph.indptr), graph.node_type, len(train.fan_out))
        read = {kind for relation in by_layer[0] for kind in (relation[0], relation[2])}
        if graph.is_temporal or graph.seed_nodes is not None:
            what = "times" if graph.is_temporal else "seed_index"
            hint = f"write a model of your own with forward(x_dict, edge_index_dict), or leave {what} out"
            raise TaskError(f'model "rgat" does not use the {what} of the data', hint, Cause.USER)
        if (unused := [name for name in OF_EDGES if getattr(graph, name)]) and task.place.rank == 0:
            print(f'model "rgat" does not take {" and ".join(unused)}: not used')
        graph = replace(graph, edge_weight={}, edge_attr={})
        kinds = [kind for kind in graph.num_nodes if kind in read]
        self._embeddings = embeddings_of(graph, kinds, train, self._precision.weights, task)
        self.classes = graph.num_classes if train.loss == "cross_entropy" else 0
        self._type = graph.node_type
        widths = {
            kind: graph.x[kind].size(1) if kind in graph.x else train.embedding_width
            for kind in graph.num_nodes
            if kind in graph.x or kind in read
        }
        self._network = Rgat(widths, graph.num_classes, by_layer, self._options)
        self._network = self._network.to(task.device, self._precision.weights)
        self.model = self._network if self._embeddings is None else WithEmbeddings(self._network, self._embeddings)
        fan_out = fan_outs(by_layer, train.fan_out)
        kind, count = graph.node_type, graph.num_nodes[graph.node_type]

        def start() -> dict[str, Tensor]:
            """How often each node of the type with classes is a seed in an epoch."""
            return {kind: torch.zeros(count).index_fill_(0, graph.train, 1.0)}

        self._graph, self._features, self._fetches = placed_by_type(
            graph, task, self._precision.values, cache, start, fan_out, split=split
        )
        self._sampler = HeteroSampler(self._graph, fan_out, train.seed, replace=train.replace)
        self._loss = Loss(train, self._graph.y, self._graph.train, graph.num_classes)
        self._metric = Metric(train, task.agreeing)
        self._metric.check(self._graph.y, partial(getattr, self._graph))

    @property
    def seeds(self) -> Tensor:
        return self._graph.train

    def prepare(self, batch: Batch) -> RelationSample:
        """The sampled neighbourhood."""
        sample = self._sampler.sample({self._type: batch.seeds}, batch.epoch, batch.step)
        hops = layer_hops(sample, self_loops=self._options.self_loops)
        fetch = self._fetches.fetch(sample.nodes) if self._fetches else None
        wanted = None if self._embeddings is None else self._embeddings.wanted(sample.nodes)
        return RelationSample(sample.nodes, hops, fetch, wanted)

    def gather(self, prepared: RelationSample) -> Mapping[str, Tensor]:
        if prepared.fetch:
            rows = self.rows_of(prepared.fetch)
        elif self._embeddings is None:
            return self._graph.x
        else:
            rows = {kind: x.index_select(0, prepared.nodes[kind]) for kind, x in self._graph.x.items()}
        if self._embeddings is not None and prepared.wanted is not None:
            found = self._embeddings.rows(prepared.wanted)
            rows = rows | {kind: one.to(self._precision.values) for kind, one in found.items()}
        return rows

    def scores(self, prepared: RelationSample, gathered: Any, randomness: tuple[int, ...]) -> Tensor:
        of_sample = prepared.fetch is not None or prepared.wanted is not None
        return self._network(prepared.hops, prepared.nodes, gathered, randomness, gathered=of_sample)[self._type]  # type: ignore[no-any-return]

    def work(self, batch: Batch, prepared: RelationSample) -> tuple[int, int]:
        return batch.total, sum(own.edges.columns.numel() for hop in prepared.hops for own in hop.relations.values())

    def error(self, scores: Tensor, batch: Batch, prepared: RelationSample) -> Tensor:  # noqa: ARG002 - of the base class
        return self._loss.of(scores, self._graph.y, batch)

    @torch.no_grad()
    def evaluate(self, splits: Sequence[str]) -> dict[str, Score]:
        """The score on each split with all neighbours: each node is evaluated once, by one rank. A collective."""
        own = own_slice(self._graph.num_nodes[self._type])
        with self._precision.autocast(self._graph.y.device):
            features = self._features
            if self._embeddings is not None:
                features = features | dict(self._embeddings.of_all(self._task, self._precision.values))
            rows = infer(self._network, self._graph, features, self._task)[self._type]
        kept = self._metric.kept(rows.to(self._precision.weights), self._graph.y)
        return measured(self._metric, self._graph, own, kept, splits)


def embeddings_of(
    graph: HeteroGraph,
    kinds: Iterable[str],
    train: NodeClassificationTrain | LinkPredictionTrain,
    dtype: torch.dtype,
    task: Task,
) -> Embeddings | None:
    """Embeddings of those of these node types that have no features, if there are any; rank 0 prints their names.

    Raises TaskError if the settings do not suit embeddings.
    """
    bare = {kind: graph.num_nodes[kind] for kind in kinds if kind not in graph.x}
    if not bare:
        if train.embedding_width != type(train).embedding_width and task.place.rank == 0:
            print("train.embedding_width is not used: all types of nodes that the model reads have features x")
        return None
    named = ", ".join(bare)
    plain_adam = train.optimizer == "adam" and not train.optimizer_options
    for key, is_set in (
        ("accumulate", train.accumulate > 1),
        ("ema", train.ema > 0),
        ("optimizer", not plain_adam),
    ):
        if is_set:
            what = f"train.{key} is not supported with embeddings, which are learned for {named}, without features x"
            raise TaskError(what, f"leave train.{key} out, or set x of {named}", Cause.USER)
    if task.place.rank == 0:
        print(f"{named} without features x: embeddings of width {train.embedding_width} are learned")
    return Embeddings(bare, train.embedding_width, train.seed, dtype).to(task.device)


# Exact inference with a relational attention network on the whole graph, layer by layer, split over the ranks.


_MOST_EDGES = 1 << 19  # per piece


def infer(model: Rgat, graph: HeteroGraph, features: Mapping[str, Features], task: Task) -> dict[str, Tensor]:
    """The last layer's rows of this rank's nodes, by type, one layer at a time for all nodes. A collective.

    Tables between layers are where the features say.
    """
    own = {kind: own_slice(count) for kind, count in graph.num_nodes.items()}
    spill = next(iter(features.values())).spill
    pieces: dict[str, Piece] = {kind: partial(own_piece, one, own[kind]) for kind, one in features.items()}
    most = NODES_AT_ONCE_FROM_DISK if spill else None
    for i, relations in enumerate(model.relations):
        rows: dict[str, Tensor] = {}
        last_into = {relation[2]: relation for relation in relations}
        for relation in relations:
            source, _, target = relation
            layer = model.of(i, relation)
            sent = sent_by_all(layer.send, pieces[source], own[source], graph.num_nodes[source], task, spill)
            whole = whole_neighborhoods(graph.relation(relation), own[target], _MOST_EDGES, most)
            edges = ((part, model.edges(relation, found)) for part, found in whole)
            parts = received(edges, sent, partial(_receive, layer, pieces[target]), _read_by)
            is_hidden = i < len(model.relations) - 1
            activate = F.elu_ if is_hidden and relation == last_into[target] else lambda rows: rows
            if target in rows:
                _add(rows[target], trimmed(parts) if spill else parts, activate)
            else:
                rows[target] = own_rows(map(activate, parts), len(own[target]), spill)
        pieces = {kind: partial(part_of, table, task.device) for kind, table in rows.items()}
    return rows


def _receive(layer: GatConv, piece: Piece, part: slice, edges: Neighborhoods, rows: Tensor) -> Tensor:
    return layer.receive(edges, rows, piece(part))


def _read_by(edges: Neighborhoods) -> tuple[Tensor, Neighborhoods]:
    nodes, columns = torch.unique(edges.columns.to(torch.int64), return_inverse=True)
    return nodes, Neighborhoods(columns.to(torch.int32), edges.offsets, edges.own)


def _add(rows: Tensor, parts: Iterable[Tensor], finish: Callable[[Tensor], Tensor]) -> None:
    """Add consecutive parts to the rows and `finish` these, in place."""
    added = 0
    for part in parts:
        own = rows[added : (added := added + len(part))]
        own += part.to(own.device)  # the rows may be on the host
        finish(own)
