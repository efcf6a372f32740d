"""The objective of graph classification with networks of ours: on whole graphs, one fold of ten as test, exact scores.

`OwnGraphClassification` extends it to a user's own model.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from clusterctl.engine.graph.blocks import has_numba, moved, own_slice
from clusterctl.engine.graph.convolutions import Copied, Gin, PlainGin, first_sum
from clusterctl.engine.graph.dropout import draw_attention_by_edge, graphs_of_a_step
from clusterctl.engine.graph.hashing import Purpose, stream
from clusterctl.engine.training.flat import Differentiated
from clusterctl.engine.training.losses import Loss
from clusterctl.engine.training.metrics import Metric
from clusterctl.engine.training.objective import Objective
from clusterctl.engine.training.own.model import (
    OwnTraining,
    broken_parameter,
    built,
    check_has_gradient,
    check_not_lazy,
    described,
    undisturbed,
)
from clusterctl.engine.training.own.pyg_model import forward_of, print_what_varies
from clusterctl.shared.errors import Cause, TaskError
from clusterctl.shared.spec import Batches, TrainingSet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import nn

    from clusterctl.engine.graph.collection import Collection, GraphBatch
    from clusterctl.engine.graph.compiled_gin import CompiledGin
    from clusterctl.engine.task.task import Task
    from clusterctl.engine.training.epoch_plan import Batch
    from clusterctl.engine.training.objective import Score
    from clusterctl.shared.spec import GraphClassificationTrain


PARTS = 10
_DEGREES = 128  # classes of the degree feature; the last one includes all higher degrees
_LARGEST_PIECE = 1 << 18  # nodes and edges that evaluation takes at once


class Graphs(NamedTuple):
    """Several graphs as one disconnected graph, on the task's device."""

    given: Any  # what the network takes: `Summed`, `GraphRows` if it is compiled, or of a user's model its arguments
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
        self.compiled = self._compiled_step(train, task)

    def _compiled_step(self, train: GraphClassificationTrain, task: Task) -> CompiledGin | None:
        """For a network of ours on a CPU, if it pays off; the same choice for any number of ranks."""
        sizes = Batches(train, task.place.world_size, TrainingSet(self.seeds.numel(), self.unit))
        nodes = sizes.size * self._graphs.num_nodes / max(1, self._graphs.num_graphs)
        is_usual = train.loss == "cross_entropy" and not train.class_weights and not train.label_smoothing
        fits = is_usual and self._precision.values == self._precision.weights and task.device.type == "cpu"
        if not (fits and train.has_many_small_steps(sizes.steps or 0, nodes) and has_numba()):
            return None
        if not isinstance(self.model, Gin | PlainGin):
            return None
        from clusterctl.engine.graph.compiled_gin import CompiledGin  # numba takes a second, and may be missing

        return CompiledGin(self.model, self._graphs, self._table)

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
        batch = batch.without_padding()
        if self.compiled is None:
            return self._cut(batch.seeds, batch.weights)
        rows = self.compiled.rows_of(batch.seeds)
        return Graphs(rows, rows.places.size, rows.edges, self._graphs.y[batch.seeds], batch.weights)

    def loss(self, batch: Batch, prepared: Graphs) -> Tensor | Differentiated:
        if self.compiled is None:
            return super().loss(batch, prepared)
        self.count(batch, prepared)
        randomness, total = (self._seed, batch.epoch, batch.step), max(1, batch.total)
        given = prepared.given, prepared.y, prepared.weights
        return Differentiated(*self.compiled.differentiated(*given, total, randomness))

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


_ALWAYS = ("x", "edge_index", "batch", "ptr", "batch_size", "num_graphs")
_USUAL = ("x", "edge_index", "batch")
_TRIED_GRAPHS = 8  # of the forward before the training


class Arguments(NamedTuple):
    """What a user's model gets, by name; and the int64 numbers of the nodes and graphs."""

    named: dict[str, Any]
    nodes: Tensor
    graphs: Tensor


class OwnGraphClassification(GraphClassification):
    """Trains the user's model `train.model`, which gets what the signature of its `forward` names, or a PyG `Batch`."""

    own_training: OwnTraining

    def __init__(self, collection: Collection, train: GraphClassificationTrain, task: Task, fold: int = 0) -> None:
        super().__init__(collection, train, task, fold)
        of_data = {"nodes": collection.of_nodes, "edges": collection.of_edges, "graphs": collection.of_graphs}
        self._call = GraphCall(self.model, train.model, [name for level in of_data.values() for name in level])
        self._attributes = {
            level: {name: values for name, values in attributes.items() if self._call.takes(name)}
            for level, attributes in of_data.items()
        }
        draw_attention_by_edge(self.model)
        tried = self._cut(self.seeds[:_TRIED_GRAPHS], torch.ones(min(_TRIED_GRAPHS, self.seeds.numel())))
        with torch.no_grad():
            with undisturbed(self.model, self._device):
                self.scored(tried, tried.given, ())  # gives lazy layers their sizes
            check_not_lazy(self.model, self._name, "give their sizes: the first forward did not use them")
            if task.place.rank == 0 and fold == 0:
                forward = partial(self.scored, tried, tried.given, (0, 0, 0))
                print_what_varies(self.model, self._name, self._device, forward)
        self.own_training = OwnTraining(self.model, train.model, task)
        if task.place.rank == 0 and fold == 0:
            if self._call.unused:
                print(
                    f"{', '.join(self._call.unused)} of the data: not used, for {self._call.written} does not name it"
                )
            if collection.x.size(1) and train.features not in ("auto", "given"):
                print(f'the features x of the data are not used: train.features = "{train.features}", not "given"')

    def made(self, train: GraphClassificationTrain) -> nn.Module:
        self._name = train.model
        kind = train.features
        if kind == "auto":
            kind = "given" if self._graphs.x.size(1) else "degree"
        self._x = features_of(self._graphs, kind)
        sizes = {"features": self._x.size(1), "classes": self._outputs}
        return built(train.model, sizes, train.options)

    def scores(self, prepared: Graphs, gathered: Any, randomness: tuple[int, ...]) -> Tensor:
        named, nodes, numbers = gathered
        arguments, keywords = self._call.arguments(named)
        graphs = prepared.y.size(0)
        try:
            with graphs_of_a_step(nodes, numbers, randomness) if randomness else nullcontext():
                scores: Tensor = self.model(*arguments, **keywords)
        except Exception as error:
            x = named["x"]
            shapes = f"x {[*x.shape]}, {prepared.edges} edges, {graphs} graphs"
            message = f"{self._name}: forward fails on {shapes}: {described(error)}"
            is_type = not x.is_floating_point() and "dtype" in str(error)
            hint = "x holds whole numbers: embed them, or give data.x.float() where the data is loaded"
            raise TaskError(message, hint if is_type else "", Cause.USER) from error
        if isinstance(scores, Tensor) and self._outputs == 1 and scores.numel() == graphs:
            scores = scores.view(graphs, 1)
        wanted = (graphs, self._outputs)
        if not isinstance(scores, Tensor) or tuple(scores.shape) != wanted:
            given = f"a tensor {[*scores.shape]}" if isinstance(scores, Tensor) else type(scores).__name__
            what = f"[graphs, {'classes' if self.classes else 'outputs'}] = {[*wanted]}"
            message = f"{self._name}: forward gives {given}, where {what} is wanted"
            raise TaskError(message, "read the nodes out by graph, as with global_add_pool(x, batch)", Cause.USER)
        check_has_gradient(scores, self.model, f"{self._name}: forward gives scores")
        return scores

    def where_it_breaks(self, prepared: Graphs, gathered: Any) -> str:  # noqa: ARG002 - of the base class
        """The part of the model that gives NaN or infinity; empty if it is the data."""
        if not gathered.named["x"].isfinite().all():
            return ""
        return broken_parameter(self.model) or "forward"

    def evaluate(self, splits: Sequence[str]) -> dict[str, Score]:
        self.own_training.agree_on_buffers()
        return super().evaluate(splits)

    def _cut(self, graphs: Tensor, weights: Tensor) -> Graphs:
        batch = self._graphs.as_given(graphs)
        given = {"x": self._x.index_select(0, batch.nodes)}
        given |= {name: getattr(batch, name) for name in ("edge_index", "batch", "ptr")}
        for level, attributes in self._attributes.items():
            numbers = getattr(batch, level)
            given |= {name: values.index_select(0, numbers) for name, values in attributes.items()}
        rest = (batch.nodes, graphs, *given.values())
        y, weights, nodes, numbers, *values = moved((self._graphs.y[graphs], weights, *rest), self._device)
        weight = self._precision.weights
        values = [value.to(weight) if value.is_floating_point() else value for value in values]
        named: dict[str, Any] = dict(zip(given, values, strict=True)) | dict.fromkeys(
            ("batch_size", "num_graphs"), graphs.numel()
        )
        return Graphs(Arguments(named, nodes, numbers), nodes.numel(), batch.edges.numel(), y, weights)


class GraphCall:
    """How the `forward` of a model of whole graphs is called, when their data has the attributes `of_data`."""

    def __init__(self, model: nn.Module, name: str, of_data: Sequence[str]) -> None:
        """Raises TaskError if there is an argument that nobody can fill."""
        form, known = forward_of(model), {*_ALWAYS, *of_data}
        required, self.written = [*form.required], form.written
        unknown = [argument for argument in required if argument not in known]
        self._takes_batch = len(required) == 1 and (bool(unknown) or required == ["batch"])
        self._names = {argument: argument for argument in form.names if argument in known}
        if len(unknown) == len(required) == len(_USUAL):  # other names for the usual ones
            self._names, unknown = dict(zip(required, _USUAL, strict=True)), []
        elif form.features in unknown:  # another name for x
            unknown.remove(form.features)
            self._names[form.features] = "x"
        self.unused = [] if self._takes_batch else [one for one in of_data if not self.takes(one)]
        if form.rest:
            hint = "name its arguments, such as x, edge_index, batch"
            raise TaskError(f"{name}: {self.written}: it is unknown what *{form.rest} takes", hint, Cause.USER)
        if not self._takes_batch and (unknown or not required):
            has = ", ".join(["x", "edge_index", "batch", *of_data])
            hint = f"set it in the graphs of data.load, or give it a default; they have {has}"
            if {"adj_t", "adj"} & {*unknown}:
                hint = "take edge_index, the format of PyG's layers, instead of a sparse matrix"
            what = f"the graphs have no {', '.join(unknown)}" if unknown else "it takes nothing"
            raise TaskError(f"{name}: {self.written}: {what}", hint, Cause.USER)

    def takes(self, attribute: str) -> bool:
        """Whether the model gets this attribute."""
        return self._takes_batch or attribute in self._names.values()

    def arguments(self, given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """What to call the model with, by position and by name."""
        if not self._takes_batch:
            return [], {argument: given[name] for argument, name in self._names.items()}
        from torch_geometric.data import Batch  # late: only for such models, which import it anyway

        return [Batch(**{name: value for name, value in given.items() if isinstance(value, Tensor)})], {}
