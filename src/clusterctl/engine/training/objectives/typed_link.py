"""Link prediction with a user's model on several types of nodes and edges: the edges of one type, exactly measured.

A model encodes all types (`EndsModel`) and scores pairs (`Decoder`). In an evaluation, the rows of both ends are in one
table: the nodes of the source's type, then those of the target's type.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import own_slice
from clusterctl.engine.graph.embeddings import WithEmbeddings
from clusterctl.engine.graph.inference import own_rows, parts_or
from clusterctl.engine.graph.links import other_messages, without_edge
from clusterctl.engine.graph.subgraphs import TypedSampler, TypedSubgraph, typed_neighbourhood
from clusterctl.engine.training.objectives.own_link import Decoder, Links, StepPairs
from clusterctl.engine.training.objectives.relation import embeddings_of
from clusterctl.engine.training.objectives.typed_node import (
    OwnTyped,
    SeveralTypes,
    TypedRows,
    TypedSample,
    typed_model,
)
from clusterctl.engine.training.own.inference import of_all
from clusterctl.engine.training.own.model import OwnTraining
from clusterctl.engine.training.own.pyg_inference import PygInference
from clusterctl.engine.training.own.typed_model import EndsModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.engine.graph.features.placement import Tables
    from clusterctl.engine.graph.features.sources import Features
    from clusterctl.engine.graph.links import TypedLinkGraph
    from clusterctl.engine.task.task import Task
    from clusterctl.engine.training.epoch_plan import Batch
    from clusterctl.engine.training.objective import Score
    from clusterctl.shared.spec import LinkPredictionTrain

_TRIED_PAIRS = 16  # of the forward before the training
_TRIED_OF_A_TYPE = 2  # of the nodes whose outputs are compared


@dataclass(frozen=True)
class TypedLinkSample(TypedSample):
    """A sample, and the pairs to score, as places among the seeds of each end's type."""

    scored: StepPairs


class BothEnds(SeveralTypes):
    """The surroundings of the nodes at both ends, numbered as in the table: the sources first, then the targets."""

    def __init__(self, rows: TypedRows, graph: TypedLinkGraph, kinds: Sequence[str]) -> None:
        super().__init__(rows, kinds[0])
        self._graph, self._kinds = graph, kinds
        self._sources = graph.num_nodes[kinds[0]]
        self.nodes = sum(graph.num_nodes[kind] for kind in kinds)
        self.edges = sum(indices.numel() for indices in graph.indices.values())

    def around(self, seeds: Tensor, hops: int, most: int = -1) -> TypedSubgraph:
        return typed_neighbourhood(self._graph, self._by_type(seeds), hops, most)

    def sampled(self, seeds: Tensor, fan_out: Sequence[int]) -> TypedSubgraph:
        sample = TypedSampler(self._graph, fan_out, 0).sample(self._by_type(seeds), 0, 0)
        return replace(sample, rows_by_depth={}, edges_by_depth={}, randomness=None)

    def far_from_an_end(self, steps: int) -> Tensor:
        nodes = super().far_from_an_end(steps)
        is_source = nodes < self._sources
        return torch.cat([nodes[is_source][:_TRIED_OF_A_TYPE], nodes[~is_source][:_TRIED_OF_A_TYPE]])

    def _by_type(self, nodes: Tensor) -> dict[str, Tensor]:
        parts = [nodes[nodes < self._sources], nodes[nodes >= self._sources] - self._sources]
        return dict(zip(self._kinds, parts, strict=False))  # of one type, all are sources


class TypedLinkPrediction(Links[TypedLinkSample], OwnTyped[TypedLinkSample]):
    """Trains the model `train.model` to distinguish pairs with an edge of one type from pairs without one."""

    _graph: TypedLinkGraph
    _own: EndsModel

    def __init__(
        self,
        graph: TypedLinkGraph,
        train: LinkPredictionTrain,
        task: Task,
        cache: int | None = None,
        *,
        split: bool = False,
    ) -> None:
        """`cache` and `split` decide where the features are, see `placed_by_type`."""
        super().__init__(graph, train, task)
        embeddings = embeddings_of(graph, graph.num_nodes, train, self._precision.weights, task)
        network = typed_model(train.model, graph, None, train.options, len(train.fan_out), train.embedding_width)
        network = network.to(task.device, self._precision.weights)
        self.model = network if embeddings is None else WithEmbeddings(network, embeddings)
        self._own = EndsModel(network, train.model, graph.edge_type)
        graph = self._own.with_used_edges(graph, quiet=task.place.rank > 0)
        self._decoder = Decoder(network, train.model, graph.edge_type)

        def start() -> Tables:
            """How often each node is an end of an example, or of a pair that is drawn for it."""
            found = {kind: torch.zeros(graph.num_nodes[kind]) for kind in self._own.kinds}
            kinds = self._own.kinds[0], self._own.kinds[-1]  # of source and target, which may be the same
            for kind, ends, count in zip(kinds, graph.train, graph.sides, strict=True):
                found[kind] += ends.bincount(minlength=count) + train.negatives * len(ends) / count
            return found

        self._rows = TypedRows(graph, task, self._precision, embeddings, cache, start, train.fan_out, split=split)
        self._graph = self._rows.graph
        self._known = without_edge(self._graph)
        self._sampler = TypedSampler(self._graph, train.fan_out, train.seed, replace=train.replace)
        seeds, _ = self._ends_of(self._examples(self.seeds[:_TRIED_PAIRS]))
        tried = self._sampler.sample(seeds, 0, 0)
        self._own.begin(tried, self._rows.stored(tried.places), quiet=task.place.rank > 0)
        self.own_training = OwnTraining(network, train.model, task)
        layers = len(train.fan_out)
        whole = PygInference(self._own, BothEnds(self._rows, self._graph, self._own.kinds), task, layers)
        self._inferences = dict.fromkeys(("val", "test"), whole)
        for which, other in other_messages(self._graph).items():
            around = BothEnds(self._rows, other, self._own.kinds)
            self._inferences[which] = PygInference(self._own, around, task, layers, quiet=True)

    def _ends_of(self, pairs: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The distinct ends of pairs, by type, and the places of the pairs among them, int64 [2, pairs]."""
        if len(self._own.kinds) == 1:
            seeds, places = torch.unique(pairs, return_inverse=True)
            return {self._own.kind: seeds}, places
        found = [torch.unique(side, return_inverse=True) for side in pairs]
        seeds_of = {kind: seeds for kind, (seeds, _) in zip(self._own.kinds, found, strict=True)}
        return seeds_of, torch.stack([places for _, places in found])

    def prepare(self, batch: Batch) -> TypedLinkSample:
        """The pairs of the step, with their neighbourhood."""
        scored, hidden = self._pairs_of(batch)
        seeds, places = self._ends_of(scored.pairs)
        subgraph = self._sampler.sample(seeds, batch.epoch, batch.step, self._graph.hidden(*hidden))
        asked = self._rows.asked([subgraph], subgraph.places)
        return TypedLinkSample(asked.inputs, asked.places, asked.fetch, asked.wanted, scored._replace(pairs=places))

    def scores(self, prepared: TypedLinkSample, gathered: Tables, randomness: tuple[int, ...]) -> Tensor:  # noqa: ARG002 - the sample has it
        rows, (subgraph,) = self._own.outputs(prepared.inputs, gathered), prepared.inputs
        ends = self._own.by_type(rows, subgraph.seeds[self._own.kind])
        return self._decoder.scores(ends, prepared.scored.pairs).to(self._precision.weights)

    def error(self, scores: Tensor, batch: Batch, prepared: TypedLinkSample) -> Tensor:  # noqa: ARG002 - of the base class
        _, y, weights, total = prepared.scored
        return self._loss(scores, y, weights, total)

    @torch.no_grad()
    def evaluate(self, splits: Sequence[str]) -> dict[str, Score]:
        self._rows.begin_evaluation()
        return super().evaluate(splits)

    def _encoded(self, inference: PygInference[Any]) -> Features:
        """The model's outputs for the nodes at both ends. A collective."""
        count = sum(self._graph.num_nodes[kind] for kind in self._own.kinds)
        own = own_slice(count)
        nodes = torch.arange(own.start, own.stop, device=self._task.device)
        parts = (rows.to(self._precision.values) for _, rows in inference.rows_at_once(nodes))
        empty = torch.empty(0, 1, dtype=self._precision.values, device=self._task.device)
        rows = own_rows(parts_or(empty, parts), len(own), self._rows.spill)
        return of_all(rows, count, self._task, self._rows.spill)

    def _rows_of(self, pairs: Tensor) -> Tensor:
        if len(self._own.kinds) == 1:
            return pairs
        return pairs + torch.tensor([[0], [self._graph.sides[0]]], device=pairs.device)

    def _decoded(self, rows: Tensor, pairs: int) -> Tensor:
        places = torch.arange(pairs, device=rows.device).expand(2, -1)
        if len(self._own.kinds) == 1:
            places = torch.arange(2 * pairs, device=rows.device).view(2, -1)
        return self._decoder.scores(self._own.by_type(rows, pairs), places)
