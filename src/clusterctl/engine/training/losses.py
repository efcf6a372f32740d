"""Losses: `train.loss` as this rank's part of a step's mean, over the known answers of all ranks.

The answers `y` are classes, int64 [examples]; or numbers, float [examples, outputs] or [examples], where NaN is an
answer that is missing and has no part in the loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from clusterctl.engine.training.own.function import OwnFunction, shown
from clusterctl.shared.errors import Cause, TaskError

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.engine.training.epoch_plan import Batch
    from clusterctl.shared.spec.learning import Learning


_TRIED = 16  # fewer scores may be between 0 and 1 by chance
_OF_NUMBERS: dict[str, Callable[..., Tensor]] = {
    "bce_with_logits": F.binary_cross_entropy_with_logits,
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "huber": F.huber_loss,
}


class Loss:
    """The loss of a training whose examples have the answers `y`; `training` are the examples to train on.

    With a loss of your own, examples count equally, however many of their answers are known.
    """

    def __init__(self, train: Learning, y: Tensor, training: Tensor, classes: int) -> None:
        """Raises TaskError if the answers do not suit the loss."""
        self._name, self._smoothing = train.loss, train.label_smoothing
        self._own = OwnFunction("train.loss", train.loss) if ":" in train.loss else None
        if train.loss == "bce_with_logits" and not bool(((y == 0) | (y == 1) | y.isnan()).all()):
            hint = 'give 0, 1, or NaN where it is unknown, or choose another train.loss, such as "mse"'
            raise TaskError("y has values other than 0 and 1, which bce_with_logits needs", hint, Cause.DATA)
        if train.loss in _OF_NUMBERS and not y.is_floating_point():  # torchrun skips the checks of `submit`
            hint = "load data of your own with data.load, or leave train.loss out"
            raise TaskError(
                f"train.loss = {train.loss} is for numbers, and y of this data are classes", hint, Cause.DATA
            )
        self._may_be_probabilities = self._name in ("cross_entropy", "bce_with_logits")  # until the first scores
        self._has_missing = y.is_floating_point() and bool(y.isnan().any())
        self._weights: Tensor | None = None  # of the classes, float64; None if all have the same
        given = train.class_weights
        if given == "balanced":
            trained = y[training]
            # As in scikit-learn; a class without training examples gets 0, not infinity.
            counts = torch.bincount(trained, minlength=classes)
            self._weights = torch.where(counts > 0, len(trained) / (classes * counts.clamp(min=1).double()), 0.0)
        elif given:
            if len(given) != classes:
                message = f"train.class_weights has {len(given)} weights, and the data has {classes} classes"
                raise TaskError(message, "give one for each class, from class 0 on", Cause.USER)
            self._weights = torch.tensor(given, dtype=torch.float64, device=y.device)

    def of(self, scores: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """This rank's part of the mean loss of a step, from the scores of `batch.seeds` and all answers `y`."""
        counts = self._has_missing or self._weights is not None  # otherwise only the number of examples matters
        of_all = y[batch.everyone] if counts else y[: batch.total]
        return self(scores, y[batch.seeds], batch.weights, self.total(of_all))

    def total(self, y: Tensor) -> Tensor | int:
        """What the sum over the examples of all ranks is divided by, from their answers: all that a step has."""
        if self._own:
            return len(y)
        if self._weights is not None:
            return self._weights[y].sum().clamp(min=torch.finfo(self._weights.dtype).tiny)
        return (~y.isnan()).sum().clamp(min=1) if self._has_missing else max(1, y.numel())

    def __call__(self, scores: Tensor, y: Tensor, weights: Tensor, total: Tensor | int) -> Tensor:
        """This rank's part of the mean: `scores` and `y` of its examples, whose `weights` are 0 for padding.

        Scores are [examples, outputs], or have the shape of `y`. The parts of all ranks add up to the mean if all
        divide by the same `total`. Raises TaskError if a function of the user's fails.
        """
        if self._own:
            return self._of_function(self._own, scores, y, weights, total)
        if self._may_be_probabilities and len(scores) >= _TRIED:
            self._may_be_probabilities = False
            self._print_if_probabilities(scores.detach())
        if self._name == "cross_entropy":
            class_weights = None if self._weights is None else self._weights.to(scores)
            losses = F.cross_entropy(scores, y, class_weights, reduction="none", label_smoothing=self._smoothing)
        else:
            unknown = y.isnan()  # not where(): a GPU would wait for the copy of its number
            y = y.masked_fill(unknown, 0.0).to(scores.dtype)
            losses = _OF_NUMBERS[self._name](scores, y, reduction="none").masked_fill(unknown, 0.0)
            weights = weights.view(-1, *[1] * (y.dim() - 1))
        return (losses * weights).sum() / total

    def _print_if_probabilities(self, scores: Tensor) -> None:
        """Warn of a softmax or sigmoid at the end of the model: these losses apply their own, and learn little then."""
        if not bool(((scores > 0) & (scores < 1)).all()) or dist.get_rank():
            return
        ones = scores.sum(1) if scores.dim() == 2 else scores[:0]
        if self._name == "bce_with_logits":
            hint = "if the model ends with a sigmoid, leave that out"
            print(f"train.loss = bce_with_logits: all scores are between 0 and 1; {hint}")
        elif torch.allclose(ones, torch.ones_like(ones), atol=1e-3):
            print("train.loss = cross_entropy: the model's scores are probabilities; leave out its softmax")

    @staticmethod
    def _of_function(own: OwnFunction, scores: Tensor, y: Tensor, weights: Tensor, total: Tensor | int) -> Tensor:
        real = weights > 0
        scores, y = scores[real], y[real]
        if not len(scores):  # only padding: no part in the loss, but in the collectives of the step
            return scores.sum()
        loss = own({"scores": scores, "y": y})
        if not isinstance(loss, Tensor) or tuple(loss.shape) not in ((), (len(scores),)):
            given = f"a tensor {shown(loss)}" if isinstance(loss, Tensor) else shown(loss)
            what = f"it gives {given}, where a loss for each of {len(scores)} examples, or their mean, is wanted"
            raise own.wrong(what, "scores are [examples, outputs]; sum or average over the outputs")
        if scores.requires_grad and not loss.requires_grad:
            raise own.wrong("its result has no gradient", "leave out detach(), item() and numpy(), and use torch alone")
        if loss.device.type == "cpu" and not loss.isfinite().all() and scores.isfinite().all():
            raise own.wrong("it gives NaN or infinity for finite scores", "does y have NaN, or is it log(0)?")
        return (loss * len(scores) if loss.dim() == 0 else loss.sum()) / total
