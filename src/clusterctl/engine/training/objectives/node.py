"""The objective of node classification with sampled neighbourhoods: cross-entropy, exact accuracy."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist

from clusterctl.engine.graph.convolutions import GcnConv, Network, SageConv
from clusterctl.engine.graph.features.placement import placed
from clusterctl.engine.graph.features.sources import FeaturesInMemory
from clusterctl.engine.graph.inference import first_aggregation, infer
from clusterctl.engine.graph.sampling import NeighborSampler, StaticSampler, worth_static
from clusterctl.engine.training.objective import Accuracy, Objective, class_loss
from clusterctl.shared.errors import Cause, TaskError
from clusterctl.shared.spec import Batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from clusterctl.engine.graph.blocks import Block
    from clusterctl.engine.graph.features.sources import Fetch
    from clusterctl.engine.graph.storage import Graph, LabelledHeteroGraph
    from clusterctl.engine.task.task import Task
    from clusterctl.engine.training.epoch_plan import Batch
    from clusterctl.engine.training.metrics import Metric
    from clusterctl.engine.training.objective import Score
    from clusterctl.shared.spec import NodeClassificationTrain, NodeTrain


class FetchedSample(NamedTuple):
    """Sampled blocks in the order of the layers, and the feature rows fetched for them.

    Without a fetch, the first block's source table is the whole feature table.
    """

    blocks: list[Block]
    fetch: Fetch[Tensor] | None


class NodeClassification(Objective[FetchedSample]):
    """Trains a network to classify nodes from their sampled neighbourhoods."""

    unit = "nodes"
    model: Network

    def __init__(
        self,
        graph: Graph,
        train: NodeTrain,
        task: Task,
        cache: int | None = None,
        *,
        split: bool = False,
        host: bool = False,
    ) -> None:
        """`cache`, `split` and `host` decide where the features are, see `placed`."""
        key = "data.placement" if split or host else "data.cache" if cache is not None else ""
        if key and (why := train.why_features_stay("")):  # torchrun skips the checks of `submit`
            raise TaskError(why, f"leave {key} or the other key out", Cause.USER)
        if host:
            print_if_on_cpu(task)
        super().__init__(train, task)
        widths = [graph.num_features, *[train.hidden_channels] * (len(train.fan_out) - 1), graph.num_classes]
        kind = {"sage": SageConv, "gcn": GcnConv}[train.model]
        self.model = Network(kind, widths, train.dropout).to(task.device, self._precision.weights)
        self.classes = graph.num_classes
        start = partial(seeds_of, graph)
        self._graph, self._features = placed(
            graph, task, self._precision.values, cache, start, train.fan_out, split=split, host=host
        )
        self._aggregated = first_aggregation(self.model, self._graph, task) if train.cache_first_aggregation else None
        fan_out = (*train.fan_out[:-1], 0) if train.cache_first_aggregation else train.fan_out
        self._fetches = not isinstance(self._features, FeaturesInMemory)
        if self._fetches:  # an extra hop without edges: its targets are the rows to fetch
            fan_out = (*fan_out, 0)
        self._sampler = sampler_of(self._graph, fan_out, train, task, may_be_static=not self._fetches)
        if train.cuda_graph:
            static = isinstance(self._sampler, StaticSampler)
            check_capturable(train, static=static, on_gpu=task.device.type == "cuda")

    @property
    def seeds(self) -> Tensor:
        return self._graph.train

    def prepare(self, batch: Batch) -> FetchedSample:
        """The sampled neighbourhood."""
        *outer, last = self._sampler.sample(batch.seeds, batch.epoch, batch.step)
        blocks = [*(block.padded() for block in outer), last]
        if not self._fetches:
            return FetchedSample(blocks, None)
        return FetchedSample(blocks[1:], self._features.fetch(blocks[0].nodes))

    def gather(self, prepared: FetchedSample) -> tuple[Tensor, Tensor]:
        """The aggregated features of the neighbours in the outermost hop, and those of its targets."""
        block, fetch = prepared.blocks[0], prepared.fetch
        with self._task.clock.gathering():
            if fetch is None:
                return self.model.gather(block, self._graph.x, self._aggregated)
            gathered = self.model.gather_own(block, fetch.rows())
        self._task.clock.note(fetch.numbers)
        return gathered

    def scores(self, prepared: FetchedSample, gathered: Any, randomness: tuple[int, ...]) -> Tensor:
        return self.model.transform(prepared.blocks, gathered, randomness)

    def work(self, batch: Batch, prepared: FetchedSample) -> tuple[int, int]:
        return batch.total, sum(block.neighbors.numel() for block in prepared.blocks)

    def error(self, scores: Tensor, batch: Batch, prepared: FetchedSample) -> Tensor:  # noqa: ARG002 - of the base class
        return class_loss(scores, self._graph.y[batch.seeds], batch.weights, batch.total)

    def evaluate(self, splits: Sequence[str]) -> dict[str, Accuracy]:
        """The accuracy on each split from exact full-graph inference: each node is counted once, by one rank."""
        with self._precision.autocast(self._task.device):
            features = self._features if self._fetches else None
            best_class = partial(torch.argmax, dim=1)
            own, predicted = infer(self.model, self._graph, self._task, self._aggregated, features, best_class)
        return accuracies(self._graph, own, predicted, splits)


def print_if_on_cpu(task: Task) -> None:
    """Print a line if there is no GPU whose host edges and features could stay on."""
    if task.device.type == "cpu" and task.place.rank == 0:
        print('data.placement = "host" changes nothing: this training runs on CPUs', flush=True)


def seeds_of(graph: Graph) -> Tensor:
    """How often each node is a seed in an epoch, float32 [nodes]."""
    return torch.zeros(graph.num_nodes).index_fill_(0, graph.train, 1.0)


def sampler_of(
    graph: Graph, fan_out: Sequence[int], train: NodeTrain | NodeClassificationTrain, task: Task, *, may_be_static: bool
) -> NeighborSampler | StaticSampler:
    """The sampler for a training, static where that pays off and is possible."""
    labor = uses_labor(train)
    batch_size = Batches(train, task.place.world_size).per_rank
    kind: type[NeighborSampler | StaticSampler] = NeighborSampler
    if may_be_static and worth_static(graph.indices.device, fan_out, batch_size):
        kind = StaticSampler
    return kind(graph, fan_out, train.seed, replace=train.replace, labor=labor)


def uses_labor(train: NodeTrain | NodeClassificationTrain) -> bool:
    """Whether neighbours are drawn by LABOR. Raises TaskError if that contradicts `train.replace`."""
    if train.sampling == "labor" and train.replace:  # torchrun skips the checks of `submit`
        raise TaskError("train.sampling = labor draws without replacement", "set train.replace = false", Cause.USER)
    return train.sampling == "labor"


def check_capturable(train: NodeTrain, *, static: bool, on_gpu: bool) -> None:
    """Raise TaskError if a step cannot be captured as a CUDA graph."""
    why = ""
    if not on_gpu:
        why = "it trains on a CPU"
    elif train.sampling == "labor":
        why = "LABOR draws from windows that the host chooses"
    elif not static:
        why = f"the sizes of its samples are not known beforehand, with fan_out = {[*train.fan_out]}"
    if why:
        raise TaskError(f"train.cuda_graph cannot capture this training: {why}", "leave it out", Cause.USER)


def nodes_of(graph: Graph | LabelledHeteroGraph, split: str, own: range) -> Tensor:
    """The nodes of a split that are this rank's, `own`: int64."""
    nodes: Tensor = getattr(graph, split)
    return nodes[(nodes >= own.start) & (nodes < own.stop)]


def kept_by_node(
    keep: Callable[[Tensor], Tensor],
    outputs: int,
    own: range,
    device: torch.device,
    found: Iterable[tuple[Tensor, Tensor]],
) -> Tensor:
    """What to `keep` of the outputs `found` of some nodes, a row for each node of `own`: zeros for the others."""
    like = keep(torch.empty(0, outputs, device=device))
    kept = like.new_zeros(len(own), *like.shape[1:])
    for nodes, rows in found:
        kept[nodes - own.start] = keep(rows)
    return kept


def measured(
    metric: Metric, graph: Graph | LabelledHeteroGraph, own: range, kept: Tensor, splits: Sequence[str]
) -> dict[str, Score]:
    """The score on each split, from what the metric `kept` of the outputs for this rank's nodes. A collective."""
    scores = {}
    for split in splits:
        mine = nodes_of(graph, split, own)
        rows = kept[(mine - own.start).to(kept.device)].to(graph.y.device)  # beside features on disk, on the host
        scores[split] = metric.score(rows, graph.y[mine], mine)
    return scores


def accuracies(graph: Graph, own: range, predicted: Tensor, splits: Sequence[str]) -> dict[str, Accuracy]:
    """The accuracy on each split, from the classes `predicted` for this rank's nodes `own`. A collective."""
    counts = torch.zeros(len(splits), 2, dtype=torch.int64, device=predicted.device)
    for split, count in zip(splits, counts, strict=True):
        nodes = nodes_of(graph, split, own)
        count[0] = (predicted[nodes - own.start] == graph.y[nodes]).sum()
        count[1] = nodes.numel()
    dist.all_reduce(counts)
    return {split: Accuracy(*count) for split, count in zip(splits, counts.tolist(), strict=True)}
