"""What a model of your own minimises, how it is measured, and how its weights are updated: keys of `[train]`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from clusterctl.shared.spec.values import OBJECT, Count, EnvName, NonNegative, OneOf, Or, Positive, Share

if TYPE_CHECKING:
    from collections.abc import Iterator

_OF_NUMBERS = ("mse", "l1", "huber")
LOSSES = ("cross_entropy", "bce_with_logits", *_OF_NUMBERS)
_METRICS_OF_CLASSES = ("accuracy", "f1_micro", "f1_macro", "roc_auc", "average_precision")
_METRICS_OF_NUMBERS = ("mae", "rmse")
LINK_METRICS = ("roc_auc", "average_precision", "mrr")
METRICS = (*_METRICS_OF_CLASSES, *_METRICS_OF_NUMBERS)
HITS = r"hits@[1-9][0-9]{0,5}"
_DEFAULT_METRICS = {
    "cross_entropy": "accuracy",
    "bce_with_logits": "f1_micro",
    "mse": "rmse",
    "l1": "mae",
    "huber": "mae",
}
YOURS = "a module and a function of your code, such as my_code:name"


def changed(train: object, names: tuple[str, ...], problem: str) -> Iterator[tuple[str, str]]:
    """Those of these keys of `[train]` that differ from their defaults, each with this problem."""
    for name in names:
        if getattr(train, name) != getattr(type(train), name):
            yield f"train.{name}", problem


@dataclass(frozen=True, kw_only=True)
class AdamOptions:
    """`train.optimizer_options` of "adam" and "adamw"."""

    beta1: Share = 0.9
    """Share of the running mean of the gradients that is kept in each step."""
    beta2: Share = 0.999
    """Share of the running mean of their squares that is kept in each step."""
    eps: Positive = 1e-8
    """Number added to the root of that mean."""


@dataclass(frozen=True, kw_only=True)
class SgdOptions:
    """`train.optimizer_options` of "sgd"."""

    momentum: Share = 0.0
    """Share of the last update that is added to the next one."""
    nesterov: bool = False
    """Whether to use Nesterov's momentum."""


OPTIMIZERS: dict[str, type[AdamOptions | SgdOptions]] = {"adam": AdamOptions, "adamw": AdamOptions, "sgd": SgdOptions}
"""The built-in optimizers, and the options of each."""


@dataclass(frozen=True, kw_only=True)
class Learning:
    """A table with these keys also has `lr`, `weight_decay`, `evaluate_every` and the like (`LoopTrain`)."""

    loss: Annotated[str, OneOf(LOSSES, OBJECT, YOURS)] = "cross_entropy"
    """What to minimise: one of these for classes, for labels of 0 and 1, or for numbers, or your function of scores and
    y, as MODULE:NAME."""
    class_weights: Annotated[tuple[NonNegative, ...] | str, Or("balanced")] = ()
    """With loss "cross_entropy": a weight for each class; "balanced" weights all classes of the training split
    equally."""
    label_smoothing: Share = 0.0
    """With loss "cross_entropy": share of each label that is spread over all classes."""
    metric: Annotated[str, OneOf(METRICS, OBJECT, YOURS)] | None = None
    """How the model is measured: by default as suits the loss, such as by "accuracy" or "rmse"; or by your function of
    predictions and y, as MODULE:NAME."""
    metric_better: Annotated[str, OneOf(("higher", "lower"))] = "higher"
    """Which values of your own metric are better."""
    report_train: bool = False
    """Whether to measure the training split, too."""
    optimizer: Annotated[str, OneOf((*OPTIMIZERS,), OBJECT, YOURS)] = "adam"
    """How weights are updated, or your function of the named parameters, as MODULE:NAME, that returns an optimizer of
    torch."""
    optimizer_options: dict[EnvName, object] = field(default_factory=dict)
    """Options of the optimizer, by name, such as momentum, or keyword arguments of your function."""
    accumulate: Count = 1
    """Batches whose gradients are added up before each update, as if the batch were that many times larger."""
    ema: Share = 0.0
    """Decay of the running mean of the weights, such as 0.999, which is measured and saved instead of them; 0 keeps
    none."""

    @property
    def metric_or_default(self) -> str:
        """The metric; the default of a loss that is not your own."""
        return self.metric or _DEFAULT_METRICS.get(self.loss, "")

    @property
    def metric_is_lower_better(self) -> bool:
        """Whether lower values of the metric are better."""
        is_own = ":" in self.metric_or_default
        return self.metric_better == "lower" if is_own else self.metric_or_default in _METRICS_OF_NUMBERS

    @property
    def reading(self) -> dict[str, str]:
        """How y of the data is read: as classes if empty, else "answers" are numbers, or whichever they look like."""
        if self.loss == "cross_entropy":
            return {}
        return {"answers": "either" if ":" in self.loss else "numbers"}

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions of the user's code that these keys name."""
        return tuple(name for name in (self.loss, self.metric_or_default, self.optimizer) if ":" in name)

    @property
    def option_tables(self) -> dict[str, type]:
        """See `Train.option_tables`."""
        kind = OPTIMIZERS.get(self.optimizer)
        return {"optimizer_options": kind} if kind else {}

    def problems_of_learning(self, *, links: bool, classes_only: str) -> Iterator[tuple[str, str]]:
        """Keys that contradict others, each with its problem; `classes_only` says why y can only hold classes."""
        metric, own_loss = self.metric_or_default, ":" in self.loss
        is_own, is_of_numbers = ":" in metric, metric in _METRICS_OF_NUMBERS
        if classes_only and not own_loss and self.loss != "cross_entropy":
            yield "train.loss", f'"{self.loss}" {classes_only}'
        for name in ("class_weights", "label_smoothing"):
            if getattr(self, name) and self.loss != "cross_entropy":
                yield f"train.{name}", 'only for loss "cross_entropy"'
        if isinstance(self.class_weights, tuple) and self.class_weights and not any(self.class_weights):
            yield "train.class_weights", "needs a weight above 0"
        if not metric:
            yield "train.metric", "missing: how is a model trained with your own loss measured?"
        elif not own_loss and not is_own and not links and is_of_numbers != (self.loss in _OF_NUMBERS):
            yield "train.metric", f'"{metric}" does not fit loss "{self.loss}"'
        if self.metric_better != "higher" and not is_own:
            yield "train.metric_better", "only for your own metric"
        if self.optimizer_options.get("nesterov") and not self.optimizer_options.get("momentum"):
            yield "train.optimizer_options.nesterov", "needs momentum"
        if ":" in self.optimizer:
            why = "your own optimizer does not use it; set it in your function or optimizer_options"
            yield from changed(self, ("lr", "weight_decay"), why)
