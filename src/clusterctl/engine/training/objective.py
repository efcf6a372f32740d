"""The interface between the training loop and a learning problem; number formats, losses and clock that these share."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from clusterctl.engine.task.step_clock import StepClock
    from clusterctl.engine.training.epoch_plan import Batch


Prepared = TypeVar("Prepared")
Rows = TypeVar("Rows")
RowsOut = TypeVar("RowsOut", covariant=True)


class Score(Protocol):
    """How good a model is on a split, over all ranks."""

    @property
    def name(self) -> str:
        """The name shown to users."""

    @property
    def share(self) -> float:
        """From 0 to 1; higher is better."""

    @property
    def total(self) -> int:
        """The number of evaluated examples."""


class Accuracy(NamedTuple):
    """Counts over all ranks."""

    correct: int
    total: int

    @property
    def name(self) -> str:
        return "accuracy"

    @property
    def share(self) -> float:
        return self.correct / self.total if self.total else 0.0


class Fetching(Protocol[RowsOut]):
    """Rows on their way: a `Fetch`, or several by type."""

    @property
    def numbers(self) -> dict[str, float]:
        """Metrics of the fetch, once it has arrived."""

    def rows(self) -> RowsOut:
        """Wait for the rows."""


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


class Objective(Protocol[Prepared]):
    """A learning problem. All ranks call its methods at the same time, so methods may use collectives."""

    @property
    def unit(self) -> str:
        """The plural noun for seeds: nodes, graphs, edges."""

    @property
    def classes(self) -> int:
        """The number of classes: a random guess scores 1 / classes, with the loss log(classes)."""

    @property
    def model(self) -> nn.Module:
        """The module with the parameters, which may contain a `ShardedTable`."""

    @property
    def seeds(self) -> Tensor:
        """All training seeds, the same on every rank."""

    def prepare(self, batch: Batch) -> Prepared:
        """The input of `loss` other than the parameters; called ahead of time, in another thread."""

    def loss(self, batch: Batch, prepared: Prepared) -> Tensor:
        """This rank's part of the step's mean loss: the parts of all ranks add up to it."""

    def evaluate(self, splits: Sequence[str]) -> Mapping[str, Score]:
        """The exact score on each of `splits` ("val", "test"), over all ranks."""


def rows_of(fetch: Fetching[Rows], clock: StepClock) -> Rows:
    """The rows fetched for a step, with the wait for them on the clock. Its compute begins afterwards."""
    clock.enter("gathering")
    rows = fetch.rows()
    clock.note(fetch.numbers)
    clock.enter("compute", "forward")
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
