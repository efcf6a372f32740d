"""Node classification with a user-defined or built-in model: any loss, any metric, exact."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from clusterctl.engine.graph.attention import Gat
from clusterctl.engine.graph.blocks import own_slice
from clusterctl.engine.graph.features.placement import placed
from clusterctl.engine.graph.hops import sampled_hops
from clusterctl.engine.graph.subgraphs import ClusterSampler, SubgraphSampler, whole
from clusterctl.engine.training.losses import Loss
from clusterctl.engine.training.metrics import Metric
from clusterctl.engine.training.objective import Objective
from clusterctl.engine.training.objectives.node import (
    kept_by_node,
    measured,
    nodes_of,
    print_if_on_cpu,
    sampler_of,
    seeds_of,
    uses_labor,
)
from clusterctl.engine.training.own.function import OwnSampler
from clusterctl.engine.training.own.inference import OwnInference
from clusterctl.engine.training.own.model import OwnModel, OwnTraining, built, check_not_lazy, found, options_of
from clusterctl.engine.training.own.pyg_inference import OneType, PygInference, check_step_fits
from clusterctl.engine.training.own.pyg_model import (
    PygModel,
    batch_norms,
    check_takes_one_type,
    forward_of,
    of_pyg,
    print_if_seeds_mix,
    with_used_edges,
)
from clusterctl.shared.errors import Cause, TaskError
from clusterctl.shared.spec import BUILT_IN, PYG_MODELS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.engine.graph.features.sources import Features, Fetch
    from clusterctl.engine.graph.storage import Graph
    from clusterctl.engine.graph.subgraphs import Clusters
    from clusterctl.engine.task.task import Task
    from clusterctl.engine.training.epoch_plan import Batch
    from clusterctl.engine.training.objective import Score
    from clusterctl.shared.spec import NodeClassificationTrain


_TRIED_SEEDS = 32  # of the forward before the training


@dataclass(frozen=True)
class Sample:
    """A sample: the feature rows, and the hops, or one subgraph for a model with `forward(x, edge_index)`."""

    fetch: Fetch[Tensor]
    hops: list[Any]  # Hop or Subgraph


@dataclass(frozen=True)
class NodeSample(Sample):
    """A sample for the outputs of nodes."""

    trained: Batch | None  # these nodes, if they are not the seeds of the plan's batch


S = TypeVar("S", bound=Sample)


class OwnSampled(Objective[S]):
    """Trains the model `train.model` on sampled neighbourhoods."""

    own_training: OwnTraining
    _own: OwnModel

    def gather(self, prepared: S) -> Tensor:
        return self.rows_of(prepared.fetch)

    def scores(self, prepared: S, gathered: Tensor, randomness: tuple[int, ...]) -> Tensor:  # noqa: ARG002 - the hops have it
        return self._own.outputs(prepared.hops, gathered)

    def work(self, batch: Batch, prepared: S) -> tuple[int, int]:
        return batch.total, sum(hop.edge_index.size(1) for hop in prepared.hops)

    def where_it_breaks(self, prepared: S, gathered: Tensor) -> str:
        with self._precision.autocast(gathered.device):
            return self._own.where_it_breaks(prepared.hops, gathered)


class _ByHops:
    """How a model with `layer(i, hop, x)` or `forward(hops, x)` is trained and evaluated."""

    def __init__(
        self, own: OwnModel, graph: Graph, features: Features, train: NodeClassificationTrain, task: Task
    ) -> None:
        check_not_lazy(own.model, own.name, "give their sizes; the model is made with the number of features")
        if train.batch != "sampled" or train.hops or train.sampler:
            key = "sampler" if train.sampler else "hops" if train.hops else f'batch = "{train.batch}"'
            hint = "write forward(self, x, edge_index) instead of layer or forward(self, hops, x), or leave it out"
            raise TaskError(f"train.{key} needs a model with forward(x, edge_index)", hint, Cause.USER)
        is_ours = train.model in BUILT_IN
        # A user-defined layer takes edges without padding, whose number is known only on the GPU.
        self._sampler = sampler_of(graph, (*train.fan_out, 0), train, task, may_be_static=is_ours)
        self._seed = train.seed
        self.inference = OwnInference(own, graph, features, len(train.fan_out), task)
        if not own.by_layer and task.place.rank == 0:
            print(f"{own.name} has no layer(i, hop, x): it is evaluated on whole neighbourhoods, which takes longer")
        if not is_ours:
            self.inference.warn_if_pieces_differ()
            tried = self._sampler.sample(graph.train[:_TRIED_SEEDS], 0, 0)
            self.inference.print_what_varies(sampled_hops(tried, (train.seed, 0, 0)))

    def sample(self, batch: Batch) -> tuple[Tensor, list[Any], Batch | None]:
        """The nodes whose features the model gets, int64, and the hops; None: the outputs are of the batch's seeds."""
        blocks = self._sampler.sample(batch.seeds, batch.epoch, batch.step)
        return blocks[0].nodes, sampled_hops(blocks, (self._seed, batch.epoch, batch.step)), None


class _ByGraph:
    """How a model with `forward(x, edge_index)` is trained and evaluated."""

    def __init__(
        self,
        own: PygModel,
        graph: Graph,
        features: Features,
        train: NodeClassificationTrain,
        task: Task,
        clusters: Clusters | None,
    ) -> None:
        self._whole, self._seed = whole(graph) if train.batch == "graph" else None, train.seed
        if self._whole and task.place.world_size > 1:  # torchrun skips the checks of `submit`
            hint = "use one rank, or leave train.batch out"
            raise TaskError('train.batch = "graph" trains on one rank', hint, Cause.USER)
        self.clusters: ClusterSampler | None = None
        if clusters is not None:
            self.clusters = ClusterSampler(graph, clusters, train.clusters_per_subgraph, train.seed)
        self._mixes_rows = bool(batch_norms(own.model))
        self._is_trained = torch.zeros_like(graph.indptr[1:], dtype=torch.bool)
        self._is_trained[graph.train] = True
        if train.sampler:
            self._sampler: SubgraphSampler | OwnSampler = OwnSampler(train.sampler, graph, train.fan_out, train.seed)
        else:
            self._sampler = SubgraphSampler(
                graph,
                train.fan_out,
                train.seed,
                replace=train.replace,
                labor=uses_labor(train),
                places=graph.edge_weight is not None or graph.edge_attr is not None,
                merged=self._mixes_rows,
            )
        tried = self._sampler.sample(graph.train[:_TRIED_SEEDS], 0, 0)
        is_quiet = task.place.rank > 0 or self._whole is not None
        own.begin(tried, own.stored(graph, tried.places), quiet=is_quiet)
        if not is_quiet and isinstance(self._sampler, SubgraphSampler) and not self._mixes_rows:

            def outputs(seeds: int) -> Tensor:
                sample = replace(self._sampler.sample(graph.train[:seeds], 0, 0), randomness=None)
                return own.outputs([sample], own.stored(graph, sample.places))

            print_if_seeds_mix(own.model, own.name, task.device, outputs, tried.seeds)
        around = OneType(own, graph, features)
        if self._whole:
            check_step_fits(own, around, len(train.fan_out), task.device)
        self.inference = PygInference(own, around, task, len(train.fan_out), train.hops)

    def sample(self, batch: Batch) -> tuple[Tensor, list[Any], Batch | None]:
        """The nodes whose features the model gets, int64, the subgraph, and, if not the batch's seeds, its nodes."""
        trained = None
        if self.clusters:
            own = batch.seeds[batch.weights > 0].tolist()
            graph = self.clusters.sample(own or batch.seeds[:1].tolist(), batch.epoch, batch.step)
            # The loss is of the training nodes in this rank's clusters; a rank with padding only wants no output.
            wanted = (self._is_trained[graph.places] & bool(own)).nonzero().squeeze(1)
            step = torch.cat([self.clusters.nodes_of(batch.epoch, number) for number in batch.everyone.tolist()])
            everyone, seeds = step[self._is_trained[step]], graph.places[wanted]
            weights = torch.ones_like(seeds)
            trained = replace(batch, seeds=seeds, weights=weights, total=everyone.numel(), everyone=everyone)
            graph = replace(graph, wanted=wanted)
        elif self._whole:
            graph = replace(self._whole, wanted=batch.seeds, randomness=(self._seed, batch.epoch, batch.step))
        else:
            trained = batch.without_padding() if self._mixes_rows else batch
            graph = self._sampler.sample(trained.seeds, batch.epoch, batch.step)
        return graph.places, [graph], trained


class OwnNodeClassification(OwnSampled[NodeSample]):
    """Trains the model `train.model` to classify nodes."""

    unit = "nodes"

    def __init__(
        self,
        graph: Graph,
        train: NodeClassificationTrain,
        task: Task,
        cache: int | None = None,
        *,
        split: bool = False,
        host: bool = False,
        clusters: Clusters | None = None,
    ) -> None:
        """`cache`, `split`, `host`: where the features are, see `placed`; `clusters` are for batch "clusters"."""
        if host and (why := train.why_edges_move("")):  # torchrun skips the checks of `submit`
            raise TaskError(why, "leave data.placement out", Cause.USER)
        if host:
            print_if_on_cpu(task)
        super().__init__(train, task)
        outputs, layers = graph.num_classes, len(train.fan_out)
        self.classes = outputs if train.loss == "cross_entropy" else 0
        sizes = {"features": graph.num_features, "classes": outputs}
        if train.model in BUILT_IN:
            model: nn.Module = Gat(graph.num_features, outputs, layers, options_of(train.model, train.options))
        elif train.model in PYG_MODELS:
            model = of_pyg(train.model, graph, layers, train.options)
        else:
            check_takes_one_type(found(train.model, "train.model"), train.model)
            model = built(train.model, sizes, train.options, layers)
        self.model = model.to(task.device, self._precision.weights)
        check_takes_one_type(self.model, train.model)
        if train.temporal_strategy != "uniform":
            what = "train.temporal_strategy needs HeteroData with times, and the data has one type of nodes"
            raise TaskError(what, "remove this key, or return HeteroData from data.load", Cause.USER)
        if train.embedding_width != type(train).embedding_width and task.place.rank == 0:
            print("train.embedding_width is not used: the data has one type of nodes")
        is_pygs = not hasattr(self.model, "layer") and forward_of(self.model).is_pygs
        self._own = (PygModel if is_pygs else OwnModel)(self.model, train.model, outputs)
        graph = with_used_edges(graph, self._own, quiet=task.place.rank > 0)
        start, fan_out = partial(seeds_of, graph), train.fan_out
        if clusters:  # every node is read once in an epoch
            start, fan_out = partial(torch.ones, graph.num_nodes), ()
        self._graph, self._features = placed(
            graph, task, self._precision.values, cache, start, fan_out, split=split, host=host
        )
        self._loss = Loss(train, self._graph.y, self._graph.train, outputs)
        self._metric = Metric(train, task.agreeing)
        self._metric.check(self._graph.y, partial(getattr, self._graph))
        if isinstance(self._own, PygModel):
            self._form: _ByGraph | _ByHops = _ByGraph(self._own, self._graph, self._features, train, task, clusters)
        else:
            self._form = _ByHops(self._own, self._graph, self._features, train, task)
        self._inference = self._form.inference
        self.own_training = OwnTraining(self.model, train.model, task)

    @property
    def seeds(self) -> Tensor:
        clusters = self._subgraphs
        return self._graph.train if clusters is None else torch.arange(clusters.subgraphs, device=self._task.device)

    @property
    def unit_of_seeds(self) -> str:
        return self.unit if self._subgraphs is None else "subgraphs"

    @property
    def _subgraphs(self) -> ClusterSampler | None:
        return self._form.clusters if isinstance(self._form, _ByGraph) else None

    def prepare(self, batch: Batch) -> NodeSample:
        """The sampled neighbourhood."""
        places, inputs, trained = self._form.sample(batch)
        return NodeSample(self._features.fetch(places), inputs, trained)

    def work(self, batch: Batch, prepared: NodeSample) -> tuple[int, int]:
        return super().work(prepared.trained or batch, prepared)

    def error(self, scores: Tensor, batch: Batch, prepared: NodeSample) -> Tensor:
        return self._loss.of(scores, self._graph.y, prepared.trained or batch)

    @torch.no_grad()
    def evaluate(self, splits: Sequence[str]) -> dict[str, Score]:
        """The score on each split with all neighbours: each node is evaluated once, by one rank. A collective."""
        self.own_training.agree_on_buffers()
        own = own_slice(self._graph.num_nodes)
        with self._precision.autocast(self._task.device):
            if isinstance(self._inference, OwnInference) and self._own.by_layer:
                kept = self._inference.rows(own, self._kept)
            else:
                mine = torch.cat([nodes_of(self._graph, split, own) for split in splits])
                found = self._inference.rows_at_once(mine)
                kept = kept_by_node(self._kept, self._own.classes or 0, own, self._graph.y.device, found)
        return measured(self._metric, self._graph, own, kept, splits)

    def _kept(self, rows: Tensor) -> Tensor:
        return self._metric.kept(rows.to(self._precision.weights), self._graph.y)
