"""Link prediction with a user-defined model: pairs with an edge against pairs without one, exactly measured.

`Links` is what graphs of one type and of several (`typed_link`) have in common: the pairs of a step, loss and score.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from clusterctl.engine.graph.blocks import own_slice
from clusterctl.engine.graph.features.placement import placed
from clusterctl.engine.graph.hops import sampled_hops
from clusterctl.engine.graph.inference import one_ahead, own_rows, parts_or
from clusterctl.engine.graph.links import both_ways, ends, how_often, negatives, other_messages, without_edge
from clusterctl.engine.graph.sampling import NeighborSampler
from clusterctl.engine.graph.subgraphs import SubgraphSampler
from clusterctl.engine.training.losses import Loss
from clusterctl.engine.training.metrics import Metric
from clusterctl.engine.training.objective import Objective
from clusterctl.engine.training.objectives.link import auc
from clusterctl.engine.training.objectives.own_node import OwnSampled, Sample
from clusterctl.engine.training.own.inference import OwnInference, of_all
from clusterctl.engine.training.own.model import OwnModel, OwnTraining, built, check_not_lazy, described
from clusterctl.engine.training.own.pyg_inference import OneType, PygInference
from clusterctl.engine.training.own.pyg_model import (
    PygModel,
    batch_norms,
    check_takes_one_type,
    forward_of,
    with_used_edges,
)
from clusterctl.shared.errors import Cause, TaskError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from clusterctl.engine.graph.blocks import Adjacency
    from clusterctl.engine.graph.features.sources import Features
    from clusterctl.engine.graph.links import LinkGraph, TypedLinkGraph
    from clusterctl.engine.graph.storage import EdgeType
    from clusterctl.engine.task.task import Task
    from clusterctl.engine.training.epoch_plan import Batch
    from clusterctl.engine.training.objective import Score
    from clusterctl.shared.spec import LinkPredictionTrain

_PAIRS_AT_ONCE = 65536  # scored
_TRIED_PAIRS = 16  # of the forward before the training


class StepPairs(NamedTuple):
    """The pairs that a rank scores in a step."""

    pairs: Tensor  # int64 [2, pairs]: the batch's, then the drawn ones
    y: Tensor  # float [pairs]: 1 for an edge, 0 for none
    weights: Tensor  # [pairs]: 0 for padding
    total: Tensor | int  # what the step's loss is divided by


P = TypeVar("P")


class Links(Objective[P]):
    """Trains on pairs with an edge against pairs without one.

    A step's own examples, their duplicates and their reverse edges carry no messages in that step, on any rank.
    """

    unit = "edges"
    own_training: OwnTraining
    _graph: LinkGraph | TypedLinkGraph  # on the task's device
    _known: Adjacency  # the pairs that are never drawn as negatives
    _inferences: dict[str, Any]  # by split: exact outputs, with the edges that carry messages for its pairs

    def __init__(self, graph: LinkGraph | TypedLinkGraph, train: LinkPredictionTrain, task: Task) -> None:
        """Raises TaskError if the data has no pairs, or too few, for these settings."""
        super().__init__(train, task)
        others = graph.train_negatives
        has_others = others is not None and others.numel()
        if train.negatives == 0 and not has_others:
            message = "train.negatives = 0, and the data has no pairs without an edge to train on"
            raise TaskError(message, "set it to 1, or give pairs with edge_label 0", Cause.USER)
        for which in ("val", "test") if train.metric.startswith("hits@") else ():
            each = getattr(graph, f"{which}_each")
            count = each or getattr(graph, f"{which}_negatives").size(1)
            if count < int(train.metric.removeprefix("hits@")):
                lacking = f"{count} pairs without an edge{' for each with one' if each else ''}: all would be hits"
                message = f"train.metric = {train.metric}, but {which} has {lacking}"
                raise TaskError(message, "choose a smaller number, or give more pairs with edge_label 0", Cause.USER)
        self._negatives = train.negatives
        self._loss = Loss(train, torch.tensor([1.0, 0.0]), torch.arange(2), 1)
        self._metric, self._is_auc = Metric(train, task.agreeing), train.metric == "roc_auc"
        is_balanced = train.negatives == 1 and train.loss == "bce_with_logits"  # what a random guess scores is known
        self.classes = 2 if is_balanced and self._is_auc else 0
        if task.place.rank == 0 and others is not None and has_others and train.negatives:
            print(
                f"{others.size(1)} pairs of train have edge_label 0 and are examples, beside those drawn for "
                f"each edge: train.negatives = {train.negatives}"
            )

    @property
    def seeds(self) -> Tensor:
        """The training examples: edges, then pairs without one."""
        train, others, edges = self._graph.train, self._graph.train_negatives, self._graph.predicted.indices
        count = edges.numel() if train is None else train.size(1)
        return torch.arange(count + (0 if others is None else others.size(1)), device=edges.device)

    def _examples(self, numbers: Tensor) -> Tensor:
        """The pairs with these numbers, int64 [2, pairs]."""
        train, others = self._graph.train, self._graph.train_negatives
        if train is None:
            return torch.stack(ends(self._graph.predicted, numbers))
        if others is None or not others.numel():
            return train.index_select(1, numbers).long()
        is_edge = numbers < train.size(1)
        pairs = train.index_select(1, numbers * is_edge)
        return torch.where(is_edge, pairs, others.index_select(1, (numbers - train.size(1)).clamp(min=0))).long()

    def _has_edge(self, numbers: Tensor) -> Tensor:
        """Whether the pairs with these numbers have an edge, bool."""
        train = self._graph.train
        return numbers < (self._graph.predicted.indices.numel() if train is None else train.size(1))

    def _pairs_of(self, batch: Batch) -> tuple[StepPairs, Tensor]:
        """The batch's pairs and `train.negatives` drawn ones for each edge; and the examples with an edge of all ranks.

        Those, int64 [2, pairs], carry no messages.
        """
        pairs, is_edge = self._examples(batch.seeds), self._has_edge(batch.seeds)
        graph, edges = self._graph, batch.seeds[is_edge]
        drawn = negatives(
            self._known, graph.sides[0], edges, self._seed, batch.epoch, self._negatives, distinct=graph.is_one_type
        )
        everyone = self._has_edge(batch.everyone)
        y = torch.cat([is_edge, is_edge.new_zeros(drawn[0].numel())]).to(self._precision.weights)
        weights = batch.weights.to(is_edge.device)
        weights = torch.cat([weights, weights[is_edge].repeat_interleave(self._negatives)])
        total = self._loss.total(torch.zeros(everyone.numel() + self._negatives * int(everyone.sum())))
        scored = StepPairs(torch.cat([pairs, torch.stack(drawn)], 1), y, weights, total)
        return scored, self._examples(batch.everyone[everyone])

    @torch.no_grad()
    def evaluate(self, splits: Sequence[str]) -> dict[str, Score]:
        """The score on each split, with all neighbours: each pair is scored once, by one rank. A collective."""
        self.own_training.agree_on_buffers()
        found: dict[str, Score] = {}
        with self._precision.autocast(self._task.device):
            for inference in dict.fromkeys(self._inferences.values()):
                own = [split for split in splits if self._inferences[split] is inference]
                if own:
                    rows = self._encoded(inference)
                    found |= {split: self._score(rows, split) for split in own}
                    rows.settle()
        return {split: found[split] for split in splits}

    def _encoded(self, inference: Any) -> Features:
        """The model's outputs for the nodes at both ends. A collective."""
        raise NotImplementedError

    def _score(self, rows: Features, split: str) -> Score:
        """The score of a split, with `rows` for its pairs."""
        pairs = [getattr(self._graph, name) for name in (split, f"{split}_negatives")]
        each = getattr(self._graph, f"{split}_each")
        own = [own_slice(part.size(1)) for part in pairs]
        scores = []
        for part, mine in zip(pairs, own, strict=True):
            pieces = torch.split(part[:, mine.start : mine.stop].to(torch.int64), _PAIRS_AT_ONCE, dim=1)
            fetches = one_ahead((piece, rows.fetch(self._rows_of(piece).flatten())) for piece in pieces)
            scored = [self._decoded(fetch.rows(), piece.size(1)) for piece, fetch in fetches]
            scores.append(torch.cat(scored).to(self._precision.weights))
        y = torch.cat([torch.ones_like(scores[0]), torch.zeros_like(scores[1])])
        kept = self._metric.kept(torch.cat(scores), y)
        if self._is_auc:
            return auc(*scores)
        places = [torch.arange(own[0].start, own[0].stop), torch.arange(own[1].start, own[1].stop) + pairs[0].size(1)]
        return self._metric.score(kept, y, torch.cat(places), each)

    def _rows_of(self, pairs: Tensor) -> Tensor:
        """Where the rows of pairs are in an evaluation, int64 [2, pairs]."""
        return pairs

    def _decoded(self, rows: Tensor, pairs: int) -> Tensor:
        """The scores of so many pairs: the rows of all sources, then of all targets."""
        raise NotImplementedError


@dataclass(frozen=True)
class LinkSample(Sample):
    """A sample, and the pairs to score, as places among the seeds' rows."""

    scored: StepPairs


class OwnLinkPrediction(Links[LinkSample], OwnSampled[LinkSample]):
    """Trains the model `train.model` to distinguish pairs with an edge from pairs without one."""

    _graph: LinkGraph

    def __init__(
        self, graph: LinkGraph, train: LinkPredictionTrain, task: Task, cache: int | None = None, *, split: bool = False
    ) -> None:
        """`cache` and `split` decide where the features are, see `placed`."""
        super().__init__(graph, train, task)
        model = built(train.model, {"features": graph.num_features}, train.options, len(train.fan_out))
        self.model = model.to(task.device, self._precision.weights)
        self._decoder = Decoder(self.model, train.model)
        self._own = encoder_of(self.model, train.model)
        if train.embedding_width != type(train).embedding_width and task.place.rank == 0:
            print("train.embedding_width is not used: the data has one type of nodes")
        graph = with_used_edges(graph, self._own, quiet=task.place.rank > 0)
        start = partial(how_often, graph)
        self._graph, self._features = placed(
            graph, task, self._precision.values, cache, start, train.fan_out, split=split
        )
        self._known = without_edge(self._graph)
        self._sampler: Any
        if isinstance(self._own, PygModel):
            places = self._graph.edge_weight is not None or self._graph.edge_attr is not None
            self._sampler = SubgraphSampler(
                self._graph,
                train.fan_out,
                train.seed,
                replace=train.replace,
                places=places,
                merged=bool(batch_norms(self._own.model)),
            )
            tried = self._sampler.sample(torch.unique(self._examples(self.seeds[:_TRIED_PAIRS])), 0, 0)
            self._own.begin(tried, self._own.stored(self._graph, tried.places), quiet=task.place.rank > 0)
        else:
            check_not_lazy(self.model, train.model, "give their sizes; the model is made with the number of features")
            self._sampler = NeighborSampler(self._graph, (*train.fan_out, 0), train.seed, replace=train.replace)
        self.own_training = OwnTraining(self.model, train.model, task)
        whole = self._inference(self._graph, train)
        if isinstance(whole, OwnInference):
            whole.warn_if_pieces_differ()
            blocks = self._sampler.sample(torch.unique(self._examples(self.seeds[:_TRIED_PAIRS])), 0, 0)
            whole.print_what_varies(sampled_hops(blocks, (train.seed, 0, 0)))
        self._inferences = dict.fromkeys(("val", "test"), whole)
        for which, other in other_messages(self._graph).items():
            self._inferences[which] = self._inference(other, train)
        self._has_divergence = hasattr(self.model, "kl_loss")
        if task.place.rank == 0 and self._has_divergence:
            print(f"{train.model}: kl_loss() is added to the loss, divided by the number of nodes, as in PyG's VGAE")

    def prepare(self, batch: Batch) -> LinkSample:
        """The pairs of the step, with their neighbourhood."""
        scored, hidden_pairs = self._pairs_of(batch)
        seeds, places = torch.unique(scored.pairs, return_inverse=True)
        scored = scored._replace(pairs=places)
        hidden = both_ways(self._graph, *hidden_pairs)
        if isinstance(self._own, PygModel):
            subgraph = self._sampler.sample(seeds, batch.epoch, batch.step, hidden)
            return LinkSample(self._features.fetch(subgraph.places), [subgraph], scored)
        blocks = self._sampler.sample(seeds, batch.epoch, batch.step, hidden)
        hops = sampled_hops(blocks, (self._seed, batch.epoch, batch.step))
        return LinkSample(self._features.fetch(blocks[0].nodes), hops, scored)

    def scores(self, prepared: LinkSample, gathered: Tensor, randomness: tuple[int, ...]) -> Tensor:
        rows = super().scores(prepared, gathered, randomness)
        return self._decoder.scores(rows, prepared.scored.pairs).to(self._precision.weights)

    def error(self, scores: Tensor, batch: Batch, prepared: LinkSample) -> Tensor:  # noqa: ARG002 - of the base class
        _, y, weights, total = prepared.scored
        loss = self._loss(scores, y, weights, total)
        if not self._has_divergence:
            return loss
        # A rank's part is its share of the pairs, so the parts of all ranks add up to a mean.
        divergence: Tensor = self.model.kl_loss()  # type: ignore[operator]
        return loss + weights.sum() / total * divergence / self._graph.num_nodes

    def _inference(self, graph: LinkGraph, train: LinkPredictionTrain) -> OwnInference | PygInference[Any]:
        """Exact outputs, when the edges of this graph carry messages."""
        if isinstance(self._own, PygModel):
            quiet = graph is not self._graph
            around = OneType(self._own, graph, self._features)
            return PygInference(self._own, around, self._task, len(train.fan_out), quiet=quiet)
        return OwnInference(self._own, graph, self._features, len(train.fan_out), self._task)

    def _encoded(self, inference: OwnInference | PygInference[Any]) -> Features:
        """The model's outputs for all nodes. A collective."""
        own = own_slice(self._graph.num_nodes)
        if self._own.by_layer and isinstance(inference, OwnInference):
            rows = inference.rows(own)
        else:
            nodes = torch.arange(own.start, own.stop, device=self._graph.indptr.device)
            parts = (rows for _, rows in inference.rows_at_once(nodes))
            rows = own_rows(parts_or(self._features.piece(0, 0), parts), len(own), self._features.spill)
        return of_all(rows, self._graph.num_nodes, self._task, self._features.spill)

    def _decoded(self, rows: Tensor, pairs: int) -> Tensor:
        return self._decoder.scores(rows, torch.arange(2 * pairs, device=rows.device).view(2, -1))


def encoder_of(model: nn.Module, name: str) -> OwnModel:
    """Calls what gives a row for each node: the model's `layer`, or `encode`, or else `forward`. Raises TaskError."""
    if hasattr(model, "layer"):
        return OwnModel(model, name, None)
    method = "encode" if hasattr(model, "encode") else "forward"
    check_takes_one_type(model, name, method)
    return (PygModel if forward_of(model, method).is_pygs else OwnModel)(model, name, None, method)


class Decoder:
    """Scores pairs from the rows of nodes: by `decode(z, edge_label_index)`, `score(sources, targets)`, or products.

    On several types, `z` are the rows by type, or `decode(z_source, z_target, edge_label_index)` takes those of both.
    """

    def __init__(self, model: nn.Module, name: str, edge_type: EdgeType | None = None) -> None:
        """`edge_type` is that of the pairs, on several types. Raises TaskError if `decode` takes something else."""
        self._name, self._model, self._edge_type = name, model, edge_type
        self._method = next((method for method in ("decode", "score") if hasattr(model, method)), "")
        self._takes_pairs = self._takes_both = False
        self._keywords: dict[str, Any] = {}
        if hasattr(model, "discriminator_loss"):  # PyG's ARGA
            what = f"{name} has a discriminator, which needs a second optimizer and a step of its own"
            raise TaskError(what, 'use GAE or VGAE, or run your own loop with workload = "command"', Cause.USER)
        if self._method == "decode":
            form = forward_of(model, "decode")
            count, last = len(form.required), form.required[-1] if form.required else ""
            self._takes_pairs = count > 1 and ("edge" in last or "index" in last)
            self._takes_both = edge_type is not None and count == 3 and self._takes_pairs
            if (count != 2 and not self._takes_both) or form.rest:
                hint = "decode(self, z, edge_label_index): one call scores pairs with and without an edge"
                if edge_type is not None:
                    hint = "decode(self, z_dict, edge_label_index): one call scores pairs with and without an edge"
                raise TaskError(f"{name}: {form.written}: it must take two arguments", hint, Cause.USER)
            if "sigmoid" in form.optional:  # as in PyG's InnerProductDecoder: losses take what is before it
                self._keywords = {"sigmoid": False}

    def scores(self, rows: Tensor | dict[str, Tensor], pairs: Tensor) -> Tensor:
        """The scores [pairs] of pairs, int64 [2, pairs], of these rows, of several types by type. Raises TaskError."""
        count, method = pairs.size(1), self._method or "the product of two rows"
        if isinstance(rows, Tensor):
            sides, shapes = [rows, rows], f"{[*rows.shape]}"
        else:
            assert self._edge_type is not None
            sides = [rows[self._edge_type[0]], rows[self._edge_type[2]]]
            shapes = ", ".join(f"{kind} {[*own.shape]}" for kind, own in rows.items())
        arguments: list[Any] = [*sides, pairs] if self._takes_both else [rows, pairs]
        if not self._takes_pairs:
            arguments = [side.index_select(0, own) for side, own in zip(sides, pairs, strict=True)]
        try:
            if self._method:
                scores = getattr(self._model, self._method)(*arguments, **self._keywords)
            else:
                scores = (arguments[0] * arguments[1]).sum(1)
        except Exception as error:
            message = f"{self._name}: {method} fails on {count} pairs, rows {shapes}: {described(error)}"
            raise TaskError(message, cause=Cause.USER) from error
        if not isinstance(scores, Tensor) or scores.numel() != count:
            given = f"a tensor {[*scores.shape]}" if isinstance(scores, Tensor) else type(scores).__name__
            message = f"{self._name}: {method} gives {given}, where a number for each of {count} pairs is wanted"
            wanted = (
                "for rows [nodes, channels] and pairs [2, pairs]"
                if self._takes_pairs
                else ("for rows [pairs, channels] of sources and of targets")
            )
            raise TaskError(message, f"{wanted}: [pairs]", Cause.USER)
        return scores.view(count)
