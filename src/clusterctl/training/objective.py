"""What can be trained: the contract between the loop and a learning problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from clusterctl.training.epoch_plan import Batch


Prepared = TypeVar("Prepared")


class Accuracy(NamedTuple):
    """Counts over all ranks."""

    correct: int
    total: int

    @property
    def share(self) -> float:
        return self.correct / self.total if self.total else 0.0


class Objective(Protocol[Prepared]):
    """A learning problem. All ranks call its methods at the same time, so they may hold collectives."""

    @property
    def unit(self) -> str:
        """What a seed is, in the plural: nodes, graphs."""

    @property
    def model(self) -> nn.Module:
        """What has the parameters."""

    @property
    def seeds(self) -> Tensor:
        """All training seeds, the same on every rank."""

    def prepare(self, batch: Batch) -> Prepared:
        """What `loss` needs of the batch besides the parameters; called ahead of time, in another thread."""

    def loss(self, batch: Batch, prepared: Prepared) -> Tensor:
        """This rank's part of the step's mean loss: the parts of all ranks add up to it."""

    def evaluate(self, splits: Sequence[str]) -> dict[str, Accuracy]:
        """The exact accuracy on each of `splits` ("val", "test"), over all ranks."""
