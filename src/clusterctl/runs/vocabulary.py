"""The metrics of a run: what each name in `metrics.jsonl` means, which direction is better, and how it is shown.

A user's own program (`clusterctl.runs.log`) may log any other name: `metric_of` describes it by its words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

Number = float | int


class Better(Enum):
    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


class Role(Enum):
    """What a metric is for, and so where it is shown."""

    COUNT = "count"  # a whole number: where the training is, or how many there are. Never a curve
    CURVE = "curve"  # changes as the training goes on, and is drawn over the steps
    RATE = "rate"  # throughput: of several, one is drawn
    PART = "part"  # seconds of a step or an evaluation: shown as shares of the step
    RESULT = "result"  # written once, when the training has ended


@dataclass(frozen=True)
class Metric:
    """One name in `metrics.jsonl`. `listed`: `status -o json` and `csv` have a column for it."""

    name: str
    label: str
    role: Role
    better: Better = Better.NEITHER
    unit: str = ""
    listed: bool = False

    def text(self, value: Number | None) -> str:
        """The value without its unit; nothing for None."""
        if value is None:
            return ""
        if self.role is Role.COUNT:
            return f"{value:.0f}"
        return rounded(value) if self.role is Role.RATE else number(value)


def number(value: Number | None, digits: int = 4) -> str:
    """A loss or an accuracy; nothing for None."""
    if value is None:
        return ""
    return f"{value:.{digits}f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.2e}"


def rounded(value: Number) -> str:
    """A count or a rate in three digits: 950, 1.2k, 35k, 1.2M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.1f}{unit}" if abs(value) < 10 * size else f"{value / size:.0f}{unit}"
    return f"{value:.0f}" if abs(value) >= 10 or value % 1 == 0 else f"{value:.1f}"


STEP_PARTS = ("sampling", "gathering", "compute", "communication")
"""The parts of a step in their order; `communication` includes waiting for the slowest rank."""

_COUNT, _CURVE, _RATE, _PART, _RESULT = Role
_HIGHER, _LOWER, _NEITHER = Better

KNOWN = {
    metric.name: metric
    for metric in (
        Metric("epoch", "epoch", _COUNT, listed=True),
        Metric("epochs", "epochs", _COUNT, listed=True),
        Metric("step", "step", _COUNT, listed=True),
        Metric("steps", "steps", _COUNT, listed=True),
        Metric("fold", "fold", _COUNT),
        Metric("folds", "folds", _COUNT),
        Metric("classes", "classes", _COUNT),
        Metric("loss", "loss", _CURVE, _LOWER, listed=True),
        Metric("val_accuracy", "val accuracy", _CURVE, _HIGHER, listed=True),
        Metric("test_accuracy", "test accuracy", _RESULT, _HIGHER, listed=True),
        Metric("val_auc", "val AUC", _CURVE, _HIGHER, listed=True),
        Metric("test_auc", "test AUC", _RESULT, _HIGHER, listed=True),
        Metric("accuracy", "accuracy", _CURVE, _HIGHER),
        Metric("auc", "AUC", _CURVE, _HIGHER),
        Metric("test_accuracy_deviation", "deviation between folds", _RESULT),
        Metric("best_possible_auc", "best possible AUC", _RESULT),
        Metric("test_nodes", "test nodes", _COUNT, unit="nodes"),
        Metric("test_graphs", "test graphs", _COUNT, unit="graphs"),
        Metric("test_edges", "test edges", _COUNT, unit="edges"),
        Metric("nodes_per_second", "nodes per second", _RATE, _HIGHER, "nodes/s", listed=True),
        Metric("edges_per_second", "edges per second", _RATE, _HIGHER, "edges/s", listed=True),
        Metric("steps_per_second", "steps per second", _RATE, _HIGHER, "steps/s"),
        Metric("seconds", "seconds a step", _PART, _LOWER, "s"),
        *(Metric(part, part, _PART, _LOWER, "s") for part in STEP_PARTS),
        Metric("cache_hit_rate", "share of rows in the cache", _CURVE, _HIGHER),
        Metric("bytes_read", "bytes read a step", _CURVE, _LOWER, "B"),
        Metric("evaluation_seconds", "seconds an evaluation", _PART, _LOWER, "s"),
        Metric("checkpoint_seconds", "seconds a checkpoint", _PART, _LOWER, "s"),
    )
}
"""The metrics that the training writes, and those that a program may log under the same meaning."""

_SCORES = {
    "val": ("val_accuracy", "val_auc", "accuracy", "auc"),  # a program's own "accuracy" counts as the validation's
    "test": ("test_accuracy", "test_auc"),
}
_WORDS_OF_HIGHER = frozenset({"acc", "accuracy", "auc", "ap", "f1", "hits", "mrr", "ndcg", "precision", "recall"})
_WORDS_OF_LOWER = frozenset({"error", "loss", "mae", "mse", "perplexity", "rmse", "seconds"})


@lru_cache(1024)
def metric_of(name: str) -> Metric:
    """The metric of that name. An unknown one is a curve, or a rate if it is `..._per_second`."""
    if known := KNOWN.get(name):
        return known
    words = re.split(r"[\W_]+", name.lower())
    if name.endswith("_per_second"):
        what = name.removesuffix("_per_second").replace("_", " ")
        return Metric(name, f"{what} per second", Role.RATE, Better.HIGHER, f"{what}/s")
    higher, lower = _WORDS_OF_HIGHER.intersection(words), _WORDS_OF_LOWER.intersection(words)
    better = Better.LOWER if lower else Better.HIGHER if higher else Better.NEITHER
    label, unit = name.replace("_", " ").strip() or name, "s" if words[-1] == "seconds" else ""
    return Metric(name, label, Role.CURVE, better, unit)


def score_of(metrics: Mapping[str, Number], split: str) -> tuple[Metric, Number] | None:
    """The score on a split ("val", "test") and its value: accuracy or AUC."""
    return next(((KNOWN[name], metrics[name]) for name in _SCORES[split] if name in metrics), None)


def own_metrics(metrics: Mapping[str, Number], most: int = 3) -> dict[str, Number]:
    """What a user's own program logged under names of its own: curves, the first `most` by name."""
    own = (name for name in sorted(metrics) if name not in KNOWN and metric_of(name).role is Role.CURVE)
    return {name: metrics[name] for name in islice(own, most)}


def counted_examples(metrics: Mapping[str, Number]) -> str:
    """What the test score counts: `1000 nodes`; empty where that is not known."""
    counts = (metric for name, metric in KNOWN.items() if name.startswith("test_") and metric.unit and name in metrics)
    return next((f"{metric.text(metrics[metric.name])} {metric.unit}" for metric in counts), "")
