"""Metrics: `train.metric` over the examples of all ranks, exact, and defined as in scikit-learn.

The answers `y` are those of `losses`. Entries whose answer is NaN do not count. Predictions are the model's outputs,
before a softmax or sigmoid. Every rank passes its own examples; rank 0 computes, except for the accuracy of classes,
which is counted where the examples are.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from clusterctl.engine.task.task import from_first
from clusterctl.engine.training.objective import Accuracy
from clusterctl.engine.training.own.function import OwnFunction, shown
from clusterctl.shared.errors import Cause, TaskError

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.engine.training.objective import Score
    from clusterctl.shared.spec.learning import Learning


_OF_BOTH_LABELS = ("roc_auc", "average_precision", "mrr", "hits@")


class Measured(NamedTuple):
    """The value of a metric."""

    name: str
    value: float
    total: int
    lower_is_better: bool


class Metric:
    """The metric of a training; `group` connects the ranks over CPU tensors (None: the world does)."""

    def __init__(self, train: Learning, group: dist.ProcessGroup | None = None) -> None:
        """Raises TaskError if there is no such function in the user's code."""
        name = train.metric_or_default
        self._own = OwnFunction("train.metric", name) if ":" in name else None
        self.name = name.rpartition(":")[2]
        self._lower_is_better, self._group = train.metric_is_lower_better, group
        self._measured_splits = ("val", "test", *(["train"] if train.report_train else []))

    def kept(self, scores: Tensor, y: Tensor) -> Tensor:
        """What `score` needs of the `scores` of some examples: of classes and accuracy only the predicted ones.

        Raises TaskError if the model gives NaN, which has no place in an order: any score would be plausible.
        """
        if broken := int(scores.isnan().view(len(scores), -1).any(1).sum()) if len(scores) else 0:
            what = f"the model gives NaN for {broken} of {len(scores)} examples in evaluation"
            hint = "the losses were finite: what does forward do otherwise in evaluation, with model.eval()?"
            raise TaskError(what, hint, Cause.USER)
        return scores.argmax(1) if self._counts(y) else scores

    def check(self, y: Tensor, examples_of: Callable[[str], Tensor]) -> None:
        """Raise TaskError if the metric has no value on a split that will be measured. An empty split has no score.

        `y` has the answers of all examples, and `examples_of` gives the numbers of those in a split, int64.
        """
        for split in self._measured_splits if self._own is None else ():
            own, problem = y[examples_of(split)], ""
            if not own.numel():
                continue
            if own.is_floating_point() and bool(own.isnan().all()):
                problem = "all of y is NaN"
            elif self.name.startswith(_OF_BOTH_LABELS):
                # One class or column with examples in it and others that are not is enough. Columns may have NaN, too.
                both = (own == 1).any(0) & (own == 0).any(0) if own.is_floating_point() else own != own[0]
                problem = "" if bool(both.any()) else "all examples of it have the same label"
            elif self.name == "accuracy" and own.dim() == 2 and own.size(1) > 1:
                problem = f"y has {own.size(1)} columns; use f1_micro"
            if problem:
                raise TaskError(
                    f"train.metric = {self.name} has no value on the {split} split: {problem}",
                    "choose another metric, or examples with both labels in each split",
                    Cause.DATA,
                )

    def score(self, kept: Tensor, y: Tensor, places: Tensor, each: int = 0) -> Score:
        """The score over all ranks, of what was `kept` of this rank's examples, their answers and numbers.

        With `each`, so many negatives belong to each positive, in the order of their numbers: mrr and hits@K compare it
        with those only. A collective. The value does not depend on which rank has which examples: rank 0 sorts them by
        number. Raises TaskError on every rank.
        """
        if self._counts(y):
            counts = torch.stack([(kept == y).sum(), torch.tensor(len(y), device=y.device)])
            dist.all_reduce(counts)
            return Accuracy(*counts.tolist())
        parts = [on_first(part, self._group) for part in (kept, y, places)]

        def measured() -> dict[str, object]:
            scores, answers, numbers = (part for part in parts if part is not None)
            order = numbers.argsort()
            try:
                value = self._value(scores[order], answers[order], each)
            except TaskError as error:
                return {"message": str(error), "hint": error.hint}
            if not math.isfinite(value):
                what = f"train.metric = {self.name} is {value}: the model gives infinite numbers"
                return {"message": what, "hint": "lower train.lr, or set train.clip_norm"}
            return {"value": value, "total": len(order)}

        found = from_first(measured, self._group)
        if "message" in found:
            raise TaskError(found["message"], found["hint"], Cause.USER)
        return Measured(self.name, found["value"], found["total"], self._lower_is_better)

    def _counts(self, y: Tensor) -> bool:
        """Whether it is the accuracy of classes, which ranks count on their own."""
        return self.name == "accuracy" and self._own is None and not y.is_floating_point()

    def _value(self, scores: Tensor, y: Tensor, each: int) -> float:
        if not len(y):
            return 0.0
        if self._own:
            with torch.no_grad():
                value = self._own({"predictions": scores, "y": y})
            try:
                number = float(value)
            except (TypeError, ValueError, RuntimeError):
                raise self._own.wrong(f"it gives {shown(value)}, where one number is wanted") from None
            if not math.isfinite(number):
                raise self._own.wrong(f"it gives {number}, where a finite number is wanted", "does y have NaN?")
            return number
        if self.name == "mrr" or self.name.startswith("hits@"):
            positive, negative = scores[y == 1], scores[y == 0]
            negative = negative.view(len(positive), each) if each else negative
            is_mrr = self.name == "mrr"
            return mrr(positive, negative) if is_mrr else hits(positive, negative, int(self.name.removeprefix("hits@")))
        return _METRICS[self.name](scores, y)


def on_first(rows: Tensor, group: dist.ProcessGroup | None) -> Tensor | None:
    """The rows of all ranks in the order of the ranks, on the host of rank 0; None on the others. A collective.

    A rank without rows need not know their width.
    """
    shape = torch.zeros(dist.get_world_size(group), 2, dtype=torch.int64)
    shape[dist.get_rank(group)] = torch.tensor([len(rows), rows.size(1) if rows.dim() == 2 and len(rows) else 0])
    dist.all_reduce(shape, group=group)
    longest, width = (int(most) for most in shape.max(0).values)
    # A gather takes tensors of one shape; what was added is cut off below.
    padded = torch.zeros(longest, *([width] if width else []), dtype=rows.dtype)
    if len(rows):
        padded[: len(rows)] = rows.detach().cpu()
    leads = dist.get_rank(group) == 0
    parts = [torch.empty_like(padded) for _ in shape] if leads else None
    dist.gather(padded, parts, group=group)
    return torch.cat([part[:count] for part, count in zip(parts, shape[:, 0].tolist(), strict=True)]) if parts else None


# The metrics of all examples, on one rank: predictions [examples, outputs] or [examples], and their answers.


def _columns(scores: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The known scores and labels, float64 [known], of each column: one of two classes, one for each of more."""
    scores = scores.double()
    if y.is_floating_point():
        scores, labels = scores.view(len(y), -1), y.double().view(len(y), -1)
    elif scores.size(1) == 2:
        scores, labels = scores[:, 1:] - scores[:, :1], y.double()[:, None]
    else:
        scores, labels = scores.softmax(1), F.one_hot(y, scores.size(1)).double()
    known = ~labels.isnan()
    return [(scores[known[:, c], c], labels[known[:, c], c]) for c in range(labels.size(1)) if known[:, c].any()]


def accuracy(scores: Tensor, y: Tensor) -> float:
    """The share of examples whose label is predicted, for one column: a score above 0 predicts a 1."""
    ((scores, labels),) = _columns(scores, y)
    return float(((scores > 0) == (labels == 1)).double().mean())


def _f1_counts(scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """For each class or column: twice the right predictions of it, and the predictions plus the answers of it."""
    if y.is_floating_point():
        pairs = [(column > 0, labels == 1) for column, labels in _columns(scores, y)]
        right = torch.stack([(predicted & wanted).sum() for predicted, wanted in pairs])
        return 2 * right, torch.stack([predicted.sum() + wanted.sum() for predicted, wanted in pairs])
    classes, predicted = scores.size(1), scores.argmax(1)
    right = torch.bincount(y[predicted == y], minlength=classes)
    both = torch.bincount(predicted, minlength=classes) + torch.bincount(y, minlength=classes)
    return 2 * right[both > 0], both[both > 0]


def f1_micro(scores: Tensor, y: Tensor) -> float:
    """The F1 of all classes or columns together; of classes, that is the accuracy."""
    right, both = _f1_counts(scores, y)
    return int(right.sum()) / max(1, int(both.sum()))


def f1_macro(scores: Tensor, y: Tensor) -> float:
    """The mean F1 of the classes that are predicted or an answer, or of all columns: 0 for one without a 1."""
    right, both = _f1_counts(scores, y)
    return float((right.double() / both.clamp(min=1)).mean())


def _of_both_labels(scores: Tensor, y: Tensor, measure: Callable[[Tensor, Tensor], float]) -> float:
    """The mean of `measure` over the columns that have both labels: there is no value for the others."""
    pairs = [(column, labels) for column, labels in _columns(scores, y) if bool((labels != labels[0]).any())]
    return math.fsum(measure(*pair) for pair in pairs) / len(pairs)


def roc_auc(scores: Tensor, y: Tensor) -> float:
    """How often a 1 scores above a 0; ties count half. The mean over columns; of classes, one against the rest."""

    def measure(scores: Tensor, labels: Tensor) -> float:
        below, positive = scores[labels == 0].sort().values, scores[labels == 1]
        wins = torch.searchsorted(below, positive).sum() + torch.searchsorted(below, positive, right=True).sum()
        return int(wins) / (2 * len(below) * len(positive))

    return _of_both_labels(scores, y, measure)


def average_precision(scores: Tensor, y: Tensor) -> float:
    """The precision at each threshold times the recall that it adds: the mean over columns, as in `roc_auc`."""

    def measure(scores: Tensor, labels: Tensor) -> float:
        scores, order = scores.sort(descending=True)
        found = labels[order].cumsum(0)
        last = torch.cat([scores[1:] != scores[:-1], scores.new_ones(1, dtype=torch.bool)])  # of equal scores
        places = last.nonzero().squeeze(1)
        found = found[places]
        added = found.diff(prepend=found.new_zeros(1))
        return float((added * found / (places + 1)).sum() / found[-1])

    return _of_both_labels(scores, y, measure)


def mrr(positive: Tensor, negative: Tensor) -> float:
    """The mean reciprocal rank of scores [positives], among the same [negatives] or each one's own [positives, each].

    Ties count half, as in OGB.
    """
    if negative.dim() == 1:
        below = negative.sort().values
        above = len(below) - torch.searchsorted(below, positive, right=True)
        ties = torch.searchsorted(below, positive, right=True) - torch.searchsorted(below, positive)
    else:
        above, ties = (negative > positive[:, None]).sum(1), (negative == positive[:, None]).sum(1)
    return float((1 / (1 + above + ties / 2).double()).mean())


def hits(positive: Tensor, negative: Tensor, k: int) -> float:
    """The share of positives that score above the `k`-th best of the negatives, as in OGB; 1 for fewer negatives.

    The negatives are those of `mrr`.
    """
    return 1.0 if negative.size(-1) < k else float((positive > negative.topk(k).values[..., -1]).double().mean())


def _errors(scores: Tensor, y: Tensor, measure: Callable[[Tensor], Tensor]) -> float:
    """The mean over columns of `measure` of the differences."""
    pairs = _columns(scores, y)
    return math.fsum(float(measure(column - wanted)) for column, wanted in pairs) / len(pairs)


def mae(scores: Tensor, y: Tensor) -> float:
    """The mean absolute error; of several columns, the mean of theirs."""
    return _errors(scores, y, lambda errors: errors.abs().mean())


def rmse(scores: Tensor, y: Tensor) -> float:
    """The root of the mean squared error; of several columns, the mean of theirs."""
    return _errors(scores, y, lambda errors: errors.square().mean().sqrt())


_METRICS: dict[str, Callable[[Tensor, Tensor], float]] = {
    metric.__name__: metric for metric in (accuracy, f1_micro, f1_macro, roc_auc, average_precision, mae, rmse)
}
