"""What the training loop trains: the frame that all learning problems share, their number formats and losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from clusterctl.engine.graph.features.sources import Fetch
    from clusterctl.engine.task.task import Task
    from clusterctl.engine.training.epoch_plan import Batch
    from clusterctl.engine.training.flat import Differentiated
    from clusterctl.engine.training.own.model import OwnTraining
    from clusterctl.shared.spec import LoopTrain


Prepared = TypeVar("Prepared")
Rows = TypeVar("Rows")


class Score(Protocol):
    """How good a model is on a split, over all ranks."""

    @property
    def name(self) -> str:
        """The name shown to users."""

    @property
    def value(self) -> float:
        """A finite number."""

    @property
    def total(self) -> int:
        """The number of evaluated examples."""

    @property
    def lower_is_better(self) -> bool:
        """Whether a lower value is better."""


def merit_of(score: Score) -> float:
    """The value of a score, negated if lower is better: the highest merit is the best."""
    return -score.value if score.lower_is_better else score.value


class Accuracy(NamedTuple):
    """Counts over all ranks."""

    correct: int
    total: int

    @property
    def lower_is_better(self) -> bool:
        return False

    @property
    def name(self) -> str:
        return "accuracy"

    @property
    def value(self) -> float:
        return self.correct / self.total if self.total else 0.0


class Precision(NamedTuple):
    """`weights` is the dtype of weights, gradients and optimizer state; `values` that of features and activations."""

    weights: torch.dtype
    values: torch.dtype

    def autocast(self, device: torch.device) -> torch.autocast:
        """The autocast context for the layers."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.values == torch.bfloat16)


PRECISIONS = {
    "float32": Precision(torch.float32, torch.float32),
    "float64": Precision(torch.float64, torch.float64),
    "bfloat16": Precision(torch.float32, torch.bfloat16),  # not float16: sums over large degrees overflow
}


class Objective(Generic[Prepared]):
    """A learning problem. All ranks call its methods at the same time, so methods may use collectives.

    Every problem shares `loss` and `scored`. A subclass defines what to gather, how to score it, and its error.
    """

    unit: str
    """The plural noun for seeds: nodes, graphs, edges."""
    classes: int
    """The number of classes: a random guess scores 1 / classes, with the loss log(classes); 0 if that does not hold."""
    model: nn.Module
    """The module with the parameters, which may contain a `ShardedTable`."""
    own_training: OwnTraining | None = None
    """What a user's model needs in training."""

    def __init__(self, train: LoopTrain, task: Task) -> None:
        self._precision = PRECISIONS[train.precision]
        self._seed, self._task = train.seed, task
        torch.manual_seed(train.seed)  # for the initial weights

    @property
    def seeds(self) -> Tensor:
        """All training seeds, the same on every rank."""
        raise NotImplementedError

    @property
    def unit_of_seeds(self) -> str:
        """What a seed is, in the plural."""
        return self.unit

    def prepare(self, batch: Batch) -> Prepared:
        """The input of `loss` other than the parameters; called ahead of time, in another thread."""
        raise NotImplementedError

    def loss(self, batch: Batch, prepared: Prepared) -> Tensor | Differentiated:
        """This rank's part of the step's mean loss, or of a part of the step: all of them add up to it."""
        randomness = (self._seed, batch.epoch, batch.step)
        if self.own_training:
            self.own_training.begin_step(*randomness, *([batch.part] if batch.part else []))
        with self._precision.autocast(self._task.device):
            gathered = self.gather(prepared)
        scores = self.scored(prepared, gathered, randomness)
        self.count(batch, prepared)
        loss = self.error(scores, batch, prepared)
        if self.own_training:
            self.own_training.check_finite(loss, lambda: self.where_it_breaks(prepared, gathered))
        return loss

    def count(self, batch: Batch, prepared: Prepared) -> None:
        """Count the work of this step, or of a part of it."""
        nodes, edges = self.work(batch, prepared)
        of_parts_before = self._task.clock.work["edges"] if batch.part else 0
        self._task.clock.count(nodes, of_parts_before + edges * dist.get_world_size())

    def scored(self, prepared: Prepared, gathered: Any, randomness: tuple[int, ...]) -> Tensor:
        """The scores in the precision of the weights; `randomness` keys dropout, and is empty in evaluation."""
        with self._precision.autocast(self._task.device):
            scores = self.scores(prepared, gathered, randomness)
        return scores.to(self._precision.weights)

    def gather(self, prepared: Prepared) -> Any:
        """The model's input rows, which may have to be fetched."""
        raise NotImplementedError

    def scores(self, prepared: Prepared, gathered: Any, randomness: tuple[int, ...]) -> Tensor:
        """The model's output for what was gathered."""
        raise NotImplementedError

    def work(self, batch: Batch, prepared: Prepared) -> tuple[int, int]:  # noqa: ARG002 - for subclasses
        """For the metrics: the nodes of all ranks in this step, and this rank's edges."""
        return 0, 0

    def error(self, scores: Tensor, batch: Batch, prepared: Prepared) -> Tensor:
        """This rank's part of the step's mean loss."""
        raise NotImplementedError

    def where_it_breaks(self, prepared: Prepared, gathered: Any) -> str:
        """The part of a user's model that gives NaN or infinity; empty if it is the data."""
        raise NotImplementedError

    def evaluate(self, splits: Sequence[str]) -> Mapping[str, Score]:
        """The exact score on each of `splits` ("train", "val", "test"), over all ranks."""
        raise NotImplementedError

    def rows_of(self, fetch: Fetch[Rows]) -> Rows:
        """The rows fetched for a step, with the wait for them on the clock."""
        with self._task.clock.gathering():
            rows = fetch.rows()
        self._task.clock.note(fetch.numbers)
        return rows


# One rank's part of a step's mean loss: the parts of all ranks add up to the mean over the seeds of all ranks.


def class_loss(scores: Tensor, classes: Tensor, weights: Tensor, total: int) -> Tensor:
    """The cross-entropy of scores [seeds, classes] and the right classes, int64 [seeds]."""
    losses = F.cross_entropy(scores, classes, reduction="none")
    return (losses * weights).sum() / total


def link_loss(scores: Tensor, weights: Tensor, total: int) -> Tensor:
    """The binary cross-entropy of scores [2 * seeds]: those of the edges, then those of as many non-edges."""
    count = weights.numel()
    wanted = torch.cat([scores.new_ones(count), scores.new_zeros(count)])
    losses = F.binary_cross_entropy_with_logits(scores, wanted, reduction="none")
    return (losses * weights.repeat(2)).sum() / (2 * total)
