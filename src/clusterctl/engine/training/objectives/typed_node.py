"""Node classification and regression with a user's model on several types of nodes and edges, at any time.

A graph without times is evaluated like one of a single type (`pyg_inference`). With times, every example is evaluated
on a tree of its own: on all that it may see, or on the latest neighbours if it is trained on those.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import own_slice
from clusterctl.engine.graph.embeddings import WithEmbeddings
from clusterctl.engine.graph.features.placement import placed_by_type
from clusterctl.engine.graph.hops import sampled_typed_hops, whole_typed_hops
from clusterctl.engine.graph.inference import NODES_AT_ONCE, NODES_AT_ONCE_FROM_DISK, own_rows
from clusterctl.engine.graph.sampling import HeteroSampler
from clusterctl.engine.graph.subgraphs import (
    TypedSampler,
    TypedSubgraph,
    typed_neighbourhood,
    typed_whole,
)
from clusterctl.engine.training.losses import Loss
from clusterctl.engine.training.metrics import Metric
from clusterctl.engine.training.objective import Objective
from clusterctl.engine.training.objectives.node import kept_by_node, measured, nodes_of
from clusterctl.engine.training.objectives.relation import embeddings_of
from clusterctl.engine.training.own import forward_memory
from clusterctl.engine.training.own.inference import of_all
from clusterctl.engine.training.own.model import OwnTraining, built, undisturbed
from clusterctl.engine.training.own.pyg_inference import PygInference
from clusterctl.engine.training.own.pyg_model import differs, print_if_seeds_mix
from clusterctl.engine.training.own.typed_model import TypedModel
from clusterctl.shared.errors import Cause, TaskError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import nn

    from clusterctl.engine.graph.embeddings import Embeddings, WantedRows
    from clusterctl.engine.graph.features.placement import Tables
    from clusterctl.engine.graph.features.sources import Features, FetchAhead, Spill
    from clusterctl.engine.graph.storage import HeteroGraph, LabelledHeteroGraph
    from clusterctl.engine.task.task import Task
    from clusterctl.engine.training.epoch_plan import Batch
    from clusterctl.engine.training.objective import Precision, Score
    from clusterctl.shared.spec import NodeClassificationTrain

_TRIED_SEEDS = 32  # of the forward before the training
_TRIED_TARGETS, _MOST_EDGES = 8, 1 << 19
_SEEDS_AT_ONCE = 256  # with times, where each seed has a tree of its own


@dataclass(frozen=True)
class TypedSample:
    """What a model gets, a TypedSubgraph or a TypedHop for each layer, and where its rows come from."""

    inputs: list[Any]
    places: Tables  # int64: the node of each row, by type
    fetch: FetchAhead[Tables, Tables] | None  # of features that are not in memory
    wanted: WantedRows | None  # of types without features


class TypedRows:
    """The rows of all types: features, wherever they are, and embeddings of the types without features."""

    def __init__(
        self,
        graph: Any,
        task: Task,
        precision: Precision,
        embeddings: Embeddings | None,
        cache: int | None,
        start: Any,
        fan_out: Sequence[int],
        *,
        split: bool = False,
    ) -> None:
        """A collective, like `placed_by_type`; `start`, `cache` and `split` are as there."""
        fan_outs = {relation: tuple(fan_out) for relation in graph.indptr}
        cache = cache if graph.x else None
        self.graph, self._features, self._fetches = placed_by_type(
            graph, task, precision.values, cache, start, fan_outs, split=split and bool(graph.x)
        )
        self._dtypes, self._embeddings, self._task = precision, embeddings, task
        self._whole: Mapping[str, Features] = self._features

    def asked(self, inputs: list[Any], places: Tables) -> TypedSample:
        """The sample, with its rows requested. Not a collective."""
        fetch = self._fetches.fetch(places) if self._fetches else None
        wanted = None if self._embeddings is None else self._embeddings.wanted(places)
        return TypedSample(inputs, places, fetch, wanted)

    def of_step(self, sample: TypedSample, fetched: Tables | None) -> Tables:
        """The rows of a step. A collective if there are embeddings."""
        nodes, rows = sample.places, fetched
        if rows is None:
            rows = {kind: x.index_select(0, nodes[kind]) for kind, x in self.graph.x.items()}
        if self._embeddings is not None:
            assert sample.wanted is not None
            found = self._embeddings.rows(sample.wanted)
            rows = rows | {kind: one.to(self._dtypes.values) for kind, one in found.items()}
        return {kind: rows[kind] for kind in nodes}

    def begin_evaluation(self) -> None:
        """Call it before `fetched`: the embeddings have changed. A collective if there are any."""
        if self._embeddings is not None:
            self._whole = {**self._features, **self._embeddings.of_all(self._task, self._dtypes.values)}

    @property
    def spill(self) -> Spill | None:
        """Where tables between the layers of an evaluation should be: None if in memory."""
        return next((features.spill for features in self._features.values()), None)

    def fetched(self, places: Tables) -> Tables:
        """The rows of these nodes of all types in an evaluation, by one rank; `settle` follows."""
        rows = self._fetches.fetch(places).rows() if self._fetches else {}
        return {
            kind: rows[kind] if kind in rows else self._whole[kind].fetch(own).rows() for kind, own in places.items()
        }

    def stored(self, nodes: Tables) -> Tables:
        """Rows of these nodes for a trial, by one rank: features as stored, and something else for embeddings."""
        weights = self._dtypes.weights
        rows = {
            kind: x.index_select(0, nodes[kind].to(x.device)).to(self._task.device, weights)
            for kind, x in self.graph.x.items()
        }
        if self._embeddings is not None:
            rows |= self._embeddings.pretended(nodes)
        return {kind: rows[kind] for kind in nodes}

    def settle(self) -> None:
        if self._fetches:
            self._fetches.settle()


class SeveralTypes:
    """The surroundings of nodes of type `kind` in a graph of several types, for `PygInference`."""

    def __init__(self, rows: TypedRows, kind: str) -> None:
        self._rows, self._graph, self._kind = rows, rows.graph, kind
        self.nodes = self._graph.num_nodes[kind]
        self.rows = sum(self._graph.num_nodes.values())
        self.edges = sum(indices.numel() for indices in self._graph.indices.values())
        self.fetched, self.stored, self.settle = rows.fetched, rows.stored, rows.settle

    def whole(self) -> TypedSubgraph:
        return typed_whole(self._graph)

    def around(self, seeds: Tensor, hops: int, most: int = -1) -> TypedSubgraph:
        return typed_neighbourhood(self._graph, {self._kind: seeds}, hops, most)

    def sampled(self, seeds: Tensor, fan_out: Sequence[int]) -> TypedSubgraph:
        sample = TypedSampler(self._graph, fan_out, 0).sample({self._kind: seeds}, 0, 0)
        return replace(sample, rows_by_depth={}, edges_by_depth={}, randomness=None)

    def far_from_an_end(self, steps: int) -> Tensor:
        """Of a few nodes, those around which there is most."""
        most = min(_TRIED_SEEDS, self.nodes)
        nodes = torch.linspace(0, self.nodes - 1, most, device=next(iter(self._graph.indptr.values())).device).long()
        sizes = torch.tensor([self.around(node[None], steps, 1).num_rows for node in nodes])
        return nodes[sizes.argsort(descending=True, stable=True).to(nodes.device)]


class AtTimes:
    """The outputs of `own` for examples of a graph with times, each on a tree of its own."""

    def __init__(self, own: TypedModel, rows: TypedRows, train: NodeClassificationTrain, task: Task) -> None:
        self._own, self._rows, self._task, self._graph = own, rows, task, rows.graph
        self._is_last = train.temporal_strategy == "last"
        fan_out = train.fan_out if self._is_last else [-1] * len(train.fan_out)
        self._sampler = TypedSampler(self._graph, fan_out, train.seed, last=self._is_last)
        with undisturbed(own.model, task.device), torch.no_grad():
            piece = self._around(self._graph.train[:_TRIED_SEEDS])
            x = rows.stored(piece.places)
            self._need = forward_memory.measured(
                lambda times: own.outputs([piece.repeated(times)], dict(x)), piece.num_rows, max(1, piece.num_edges)
            )
        if task.place.rank == 0:
            what = "the latest neighbours of each, as in training" if self._is_last else "all that each example may see"
            print(f"{own.name} is evaluated on {what}, {len(fan_out)} hops")

    def rows_at_once(self, examples: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """These examples (int64) in chunks, with their outputs. Every rank must iterate to the end."""
        free = forward_memory.free_memory(self._task.device)
        for some in torch.split(examples, _SEEDS_AT_ONCE):
            yield from self._fitting(some, free)
        self._rows.settle()

    def _fitting(self, examples: Tensor, free: int) -> Iterator[tuple[Tensor, Tensor]]:
        piece = self._around(examples)
        if len(examples) > 1 and self._need.of(piece.num_rows, piece.num_edges) > free:
            for half in examples.tensor_split(2):
                yield from self._fitting(half, free)
        else:
            yield examples, self._own.outputs([piece], self._rows.fetched(piece.places))

    def _around(self, examples: Tensor) -> TypedSubgraph:
        return replace(sample_of(self._sampler, self._graph, examples, 0, 0), randomness=None)


class LayerByLayer:
    """The outputs of a model with `layer(i, hop, x)`: one layer at a time for all nodes, split over the ranks."""

    def __init__(self, own: TypedModel, rows: TypedRows, kind: str, layers: int, task: Task) -> None:
        """Prints a line if the rows of a type depend on how the nodes are divided into pieces."""
        self._own, self._rows, self._graph, self._task = own, rows, rows.graph, task
        self._wanted = [{kind}]  # the types whose rows each layer must compute, the last layer first
        for _ in range(layers - 1):
            into = self._wanted[-1]
            self._wanted.append(into | {relation[0] for relation in self._graph.indptr if relation[2] in into})
        self._kind = kind
        with undisturbed(own.model, task.device), torch.no_grad():
            if task.place.rank == 0 and (differing := self._types_that_differ()):
                print(
                    f"{own.name}: layer 0 gives other rows of {', '.join(differing)} in other pieces, so scores depend "
                    "on the number of ranks: compute the rows of each type from its own edges"
                )

    def _types_that_differ(self) -> list[str]:
        """The types whose rows in a piece differ from those of nodes alone."""
        found = []
        last = len(self._wanted) == 1
        for kind in sorted(self._wanted[-1]):
            own = range(min(_TRIED_TARGETS, self._graph.num_nodes[kind]))
            parts = [
                self._own.layer_of_types(0, hop, self._rows.stored(hop.nodes), last=last).get(kind)
                for most in (len(own), 1)
                for hop in whole_typed_hops(self._graph, kind, own, _MOST_EDGES, most)
            ]
            if all(part is not None for part in parts):
                together, *alone = [part for part in parts if part is not None]
                if differs(together, torch.cat(alone)):
                    found.append(kind)
        return found

    def outputs(self, nodes: Tensor) -> Tensor:
        """The outputs of these nodes, int64, of the type with answers. A collective."""
        features: dict[str, Features] = {}
        for number, kinds in enumerate(reversed(self._wanted)):
            features = {kind: self._of_all(number, kind, features) for kind in self._graph.num_nodes if kind in kinds}
        rows = features[self._kind].fetch(nodes).rows()
        features[self._kind].settle()
        return rows

    def _of_all(self, number: int, kind: str, features: Mapping[str, Features]) -> Features:
        count, spill = self._graph.num_nodes[kind], self._rows.spill
        own = own_slice(count)
        most = NODES_AT_ONCE_FROM_DISK if spill else NODES_AT_ONCE
        last = number == len(self._wanted) - 1
        parts = []
        for hop in whole_typed_hops(self._graph, kind, own, _MOST_EDGES, most) if len(own) else ():
            hidden = {other: one.fetch(hop.nodes[other]).rows() for other, one in features.items()}
            x = hidden if number else self._rows.fetched(hop.nodes)
            found = self._own.layer_of_types(number, hop, x, last=last)
            if kind not in found:
                message = f"{self._own.name}: layer {number} gives no rows of {kind}, which later layers read"
                raise TaskError(message, "return rows of all types in hop.targets", Cause.USER)
            parts.append(found[kind])
        empty = torch.empty(0, 1, dtype=next(self._own.model.parameters()).dtype, device=self._task.device)
        rows = own_rows(parts or [empty], len(own), spill)
        for one in features.values() if number else [self._rows]:
            one.settle()
        return of_all(rows, count, self._task, spill)


Sampling = Callable[[Tensor, int, int], tuple[list[Any], "Tables"]]
"""The inputs of a model for some examples (int64), an epoch and a step, and the nodes whose rows it gets, by type."""


def by_subgraphs(graph: LabelledHeteroGraph, train: NodeClassificationTrain) -> Sampling:
    """Subgraphs, for models with `forward(x_dict, edge_index_dict)`."""
    is_last = train.temporal_strategy == "last"
    sampler = TypedSampler(graph, train.fan_out, train.seed, replace=train.replace, last=is_last)

    def sample(examples: Tensor, epoch: int, step: int) -> tuple[list[Any], Tables]:
        subgraph = sample_of(sampler, graph, examples, epoch, step)
        return [subgraph], subgraph.places

    return sample


def by_layers(graph: LabelledHeteroGraph, train: NodeClassificationTrain) -> Sampling:
    """A hop for each layer, for models with `layer(i, hop, x)`. Raises TaskError."""
    if graph.is_temporal or train.hops:
        key = "data with times needs" if graph.is_temporal else "train.hops needs"
        hint = "write forward(self, x_dict, edge_index_dict) instead of layer, or leave it out"
        raise TaskError(f"{key} a model with forward(x_dict, edge_index_dict)", hint, Cause.USER)
    fan_outs = dict.fromkeys(graph.indptr, tuple(train.fan_out))
    sampler = HeteroSampler(graph, fan_outs, train.seed, replace=train.replace)

    def sample(examples: Tensor, epoch: int, step: int) -> tuple[list[Any], Tables]:
        nodes, places = torch.unique(graph.nodes_of(examples), return_inverse=True)
        found = sampler.sample({graph.node_type: nodes}, epoch, step)
        hops = sampled_typed_hops(found, (train.seed, epoch, step))
        hops[-1] = replace(hops[-1], wanted=places)
        return hops, found.nodes

    return sample


def sample_of(
    sampler: TypedSampler, graph: LabelledHeteroGraph, examples: Tensor, epoch: int, step: int
) -> TypedSubgraph:
    """The sampled trees of these examples, int64."""
    nodes = {graph.node_type: graph.nodes_of(examples)}
    if graph.seed_times is None:
        return sampler.sample(nodes, epoch, step)
    latest = graph.seed_times.index_select(0, examples)
    return sampler.sample(nodes, epoch, step, latest=latest, examples=examples)


def typed_model(
    name: str, graph: HeteroGraph, classes: int | None, options: Mapping[str, Any], layers: int, width: int
) -> nn.Module:
    """The user's model for this graph: its sizes are widths by type and, if any, classes. Raises TaskError."""
    kinds, relations = list(graph.num_nodes), list(graph.indptr)
    widths = {kind: graph.x[kind].size(1) if kind in graph.x else width for kind in kinds}
    known = {
        "metadata": (kinds, relations),
        "node_types": kinds,
        "edge_types": relations,
        "num_nodes_dict": dict(graph.num_nodes),
    }
    sizes: dict[str, Any] = {"features": widths} | ({} if classes is None else {"classes": classes})
    return built(name, sizes, options, layers, known=known)


S = TypeVar("S", bound=TypedSample)


class OwnTyped(Objective[S]):
    """Trains the model `train.model` on samples of a graph with several types."""

    own_training: OwnTraining
    _own: TypedModel
    _rows: TypedRows

    def gather(self, prepared: S) -> Tables:
        fetched = self.rows_of(prepared.fetch) if prepared.fetch else None
        return self._rows.of_step(prepared, fetched)

    def work(self, batch: Batch, prepared: S) -> tuple[int, int]:
        return batch.total, sum(one.num_edges for one in prepared.inputs)

    def where_it_breaks(self, prepared: S, gathered: Tables) -> str:
        with self._precision.autocast(self._task.device):
            return self._own.where_it_breaks(prepared.inputs, gathered)


class TypedNodeClassification(OwnTyped[TypedSample]):
    """Trains the model `train.model` on examples of one node type of a graph with several types."""

    _graph: LabelledHeteroGraph

    def __init__(
        self,
        graph: LabelledHeteroGraph,
        train: NodeClassificationTrain,
        task: Task,
        cache: int | None = None,
        *,
        split: bool = False,
    ) -> None:
        """`cache` and `split` are as for `placed_by_type`. Raises TaskError if settings do not suit several types."""
        super().__init__(train, task)
        check_settings(train, graph)
        outputs, kind = graph.num_classes, graph.node_type
        self.classes = outputs if train.loss == "cross_entropy" else 0
        self.unit = "nodes" if graph.seed_nodes is None else "rows"
        embeddings = embeddings_of(graph, graph.num_nodes, train, self._precision.weights, task)
        network = typed_model(train.model, graph, outputs, train.options, len(train.fan_out), train.embedding_width)
        network = network.to(task.device, self._precision.weights)
        self.model = network if embeddings is None else WithEmbeddings(network, embeddings)
        self._own = TypedModel(network, train.model, outputs, kind)
        graph = self._own.with_used_edges(graph, quiet=task.place.rank > 0)

        def start() -> dict[str, Tensor]:
            """How often each node is a seed in an epoch."""
            return {kind: graph.nodes_of(graph.train).bincount(minlength=graph.num_nodes[kind]).float()}

        self._rows = TypedRows(graph, task, self._precision, embeddings, cache, start, train.fan_out, split=split)
        self._graph = self._rows.graph
        self._loss = Loss(train, self._graph.y, self._graph.train, outputs)
        self._metric = Metric(train, task.agreeing)
        self._metric.check(self._graph.y, partial(getattr, self._graph))
        self._sample = by_layers(self._graph, train) if self._own.by_layer else by_subgraphs(self._graph, train)
        inputs, places = self._sample(self._graph.train[:_TRIED_SEEDS], 0, 0)
        tried = inputs if self._own.by_layer else inputs[0]
        self._own.begin(tried, self._rows.stored(places), quiet=task.place.rank > 0)
        if task.place.rank == 0 and not self._own.by_layer:

            def tried_outputs(seeds: int) -> Tensor:
                inputs, places = self._sample(self._graph.train[:seeds], 0, 0)
                return self._own.outputs([replace(one, randomness=None) for one in inputs], self._rows.stored(places))

            print_if_seeds_mix(network, train.model, task.device, tried_outputs, len(self.seeds[:_TRIED_SEEDS]))
        self._inference: AtTimes | LayerByLayer | PygInference[TypedSubgraph]
        if self._own.by_layer:
            self._inference = LayerByLayer(self._own, self._rows, kind, len(train.fan_out), task)
        elif graph.is_temporal:
            self._inference = AtTimes(self._own, self._rows, train, task)
        else:
            around = SeveralTypes(self._rows, kind)
            self._inference = PygInference(self._own, around, task, len(train.fan_out), train.hops)
        self.own_training = OwnTraining(network, train.model, task)

    @property
    def seeds(self) -> Tensor:
        return self._graph.train

    def prepare(self, batch: Batch) -> TypedSample:
        """The sampled neighbourhood."""
        return self._rows.asked(*self._sample(batch.seeds, batch.epoch, batch.step))

    def scores(self, prepared: TypedSample, gathered: Tables, randomness: tuple[int, ...]) -> Tensor:  # noqa: ARG002 - the sample has it
        return self._own.outputs(prepared.inputs, gathered)

    def error(self, scores: Tensor, batch: Batch, prepared: TypedSample) -> Tensor:  # noqa: ARG002 - of the base class
        return self._loss.of(scores, self._graph.y, batch)

    @torch.no_grad()
    def evaluate(self, splits: Sequence[str]) -> dict[str, Score]:
        """The score on each split: each example is evaluated once, by one rank. A collective."""
        self.own_training.agree_on_buffers()
        self._rows.begin_evaluation()
        own = own_slice(len(self._graph.y))
        mine = torch.cat([nodes_of(self._graph, split, own) for split in splits])
        with self._precision.autocast(self._task.device):
            kept = kept_by_node(self._kept, self._own.classes or 0, own, mine.device, self._outputs(mine))
        return measured(self._metric, self._graph, own, kept, splits)

    def _outputs(self, examples: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """These examples with their outputs, in chunks."""
        if isinstance(self._inference, AtTimes):
            yield from self._inference.rows_at_once(examples)
            return
        if isinstance(self._inference, LayerByLayer):
            nodes = self._graph.nodes_of(examples)
            yield examples, self._inference.outputs(nodes)
            return
        nodes, places = torch.unique(self._graph.nodes_of(examples), return_inverse=True)
        if len(nodes) == len(examples):
            order = places.argsort()
            for some, rows in self._inference.rows_at_once(nodes):
                yield examples[order[torch.searchsorted(nodes, some)]], rows
            return
        parts = list(self._inference.rows_at_once(nodes))
        yield examples, torch.cat([rows for _, rows in parts])[places]

    def _kept(self, rows: Tensor) -> Tensor:
        return self._metric.kept(rows.to(self._precision.weights), self._graph.y)


def check_settings(train: NodeClassificationTrain, graph: LabelledHeteroGraph) -> None:
    """Raise TaskError if these settings do not suit a model on several types of nodes and edges."""
    unsupported = {
        'train.sampling = "labor"': train.sampling == "labor",
        f'train.batch = "{train.batch}"': train.batch != "sampled",
        "train.sampler": train.sampler is not None,
        "train.hops": bool(train.hops) and graph.is_temporal,
        "train.temporal_strategy": train.temporal_strategy != "uniform" and not graph.is_temporal,
    }
    for key, is_set in unsupported.items():
        if is_set:
            of = "times" if key == "train.hops" else "several types of nodes" if graph.is_temporal else "no times"
            of = "several types of nodes" if "temporal" not in key and "hops" not in key else of
            raise TaskError(f"{key} is not supported on data with {of}", "remove this key", Cause.USER)
