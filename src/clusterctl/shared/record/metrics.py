"""The metrics of a run, one JSON object per line in `attempts/<n>/metrics.jsonl`, and what each name means.

A million steps take less than 100 MB, in one attempt or a hundred. Records with the same names are of one kind. Of each
kind a run writes the first 65,536, then every second one up to twice that number, then every fourth, and so on: each
doubling of the run's length adds 32,768 lines, so the newest half of a run always has that many. A record's number in
the run follows from its step. The newest skipped record is written when one of a rarer kind comes, such as an
evaluation's, and when the program ends. The first hundred records of an attempt, and the first hundred with non-finite
values, are always written.
"""

from __future__ import annotations

import atexit
import math
import re
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from clusterctl.shared.errors import reason
from clusterctl.shared.record.files import Lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.shared.record.layout import Attempt


_WHOLE = 2**16  # records of a kind that are written without thinning
_FIRST = 100  # of an attempt, always written: their frequency is not known yet
_MOST_KINDS = 1000  # a program may generate names
_LETTING_GO_SECONDS = 0.05
_MOST_SAID = 20  # lines on stderr
_said: set[str] = set()


class MetricsWriter:
    """Appends to an attempt's metrics; does nothing without an attempt or on ranks other than 0."""

    def __init__(self, attempt: Attempt | None, rank: int) -> None:
        self._lines = Lines(attempt.metrics, attempt.path.parents[1]) if attempt and rank == 0 else None
        self._kinds: dict[tuple[object, ...], _Kind] = {}
        self._left_out: dict[int, dict[str, Number]] = {}  # the newest record of each kind, if it was skipped
        if self._lines:
            atexit.register(self._settle, self._lines)

    def write(self, **values: Number) -> None:
        if not self._lines:
            return
        values = {name: number for name, value in values.items() if (number := as_number(name, value)) is not None}
        finite = not any(isinstance(value, float) and not math.isfinite(value) for value in values.values())
        names = (*values, finite)
        known = names in self._kinds or len(self._kinds) < _MOST_KINDS
        kind, record = self._kinds.setdefault(names if known else (), _Kind()), {"time": time.time(), **values}
        every = stride(kind.take(values.get("step")))
        if kind.count % every and kind.count > _FIRST:
            self._left_out[id(kind)] = record
            return
        self._left_out.pop(id(kind), None)
        if every == 1 and self._left_out:
            self.write_left_out()
        self._lines.append(record)

    @staticmethod
    def _settle(lines: Lines) -> None:
        if not lines.settle():
            say_once("the last metrics are not written: the disk is full")

    def write_left_out(self) -> None:
        """Write the newest record of each kind if it was skipped."""
        left_out, self._left_out = self._left_out, {}
        for record in sorted(left_out.values(), key=lambda record: record["time"]):
            if self._lines:
                self._lines.append(record)


def as_number(name: str, value: Any) -> Number | None:
    """`value` as a number of Python's, from one of NumPy, torch or the like; None, and one line, if it is none."""
    if type(value) in (int, float):
        return value  # type: ignore[no-any-return]
    try:
        found = value.item() if hasattr(value, "item") else value
        return found if type(found) in (int, float) else int(found) if type(found) is bool else float(found)
    except Exception as error:
        say_once(f"{name} is not logged: {type(value).__name__} is not a number: {reason(error)}")
        return None


def say_once(message: str) -> None:
    """A line on stderr for what this program's calls could not do, each once."""
    if message not in _said and len(_said) < _MOST_SAID:
        _said.add(message)
        with suppress(OSError, ValueError):
            sys.stderr.write(f"clusterctl: {message}\n")


@dataclass(slots=True)
class _Kind:
    """Records with the same names; finite and non-finite records are of different kinds."""

    count: int = 0  # in this attempt
    first: int = 0  # its step

    def take(self, step: object) -> int:
        """Count one record; returns its number in the run, assuming that earlier attempts logged equally often."""
        self.count += 1
        if type(step) is not int:
            return self.count
        if self.count == 1:
            self.first = step
        return max(self.count, step * (self.count - 1) // (step - self.first)) if step > self.first else self.count


def stride(number: int) -> int:
    """One in how many records of a kind is written after `number` of them: a power of two."""
    return 1 << ((number - 1) // _WHOLE).bit_length()


# The vocabulary: what each name means, which direction is better, and how it is shown. A user's own program
# (`clusterctl.program.log`) may log any other name: `metric_of` interprets it by its words.

Number = float | int


class Better(Enum):
    HIGHER = "higher"
    LOWER = "lower"
    NEITHER = "neither"


class Role(Enum):
    """The purpose of a metric, which decides where it is shown."""

    COUNT = "count"  # an integer such as the training's position or a size; never a curve
    CURVE = "curve"  # changes during training; plotted over the steps
    RATE = "rate"  # throughput; only one of several is plotted
    PART = "part"  # seconds of a step or an evaluation; shown as shares of the step
    RESULT = "result"  # written once, at the end of training


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
        """The value without its unit; empty for None."""
        if value is None:
            return ""
        if self.role is Role.COUNT:
            return f"{value:.0f}"
        return rounded(value) if self.role is Role.RATE else number(value)


def number(value: Number | None, digits: int = 4) -> str:
    """A loss or a score; empty for None."""
    if value is None:
        return ""
    return f"{value:.{digits}f}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.2e}"


def rounded(value: Number) -> str:
    """A count or a rate with up to three digits: 950, 1.2k, 35k, 1.2M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.1f}{unit}" if abs(value) < 10 * size else f"{value / size:.0f}{unit}"
    return f"{value:.0f}" if abs(value) >= 10 or value % 1 == 0 else f"{value:.1f}"


STEP_PARTS = ("sampling", "gathering", "compute", "communication")
"""The parts of a step in order; `communication` includes waiting for the slowest rank."""

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
        Metric("bytes_exchanged", "bytes exchanged a step", _CURVE, _LOWER, "B"),
        Metric("evaluation_seconds", "seconds an evaluation", _PART, _LOWER, "s"),
        Metric("checkpoint_seconds", "seconds a checkpoint", _PART, _LOWER, "s"),
    )
}
"""The metrics written by training, and names that a program may log with the same meaning."""

_HIGHER_NAMES = "accuracy|auc|f1_micro|f1_macro|roc_auc|average_precision|mrr|hits@[0-9]+"
_MEASURES = re.compile(rf"(?P<higher>{_HIGHER_NAMES})|mae|rmse|(?P<own>score|error)_(?P<name>.+)")
"""Scores on a split, as in val_rmse; a function of the user's is a "score" if higher is better, else an "error"."""
_SCORES = {
    "val": ("val_accuracy", "val_auc", "accuracy", "auc"),  # a program's "accuracy" counts as validation accuracy
    "test": ("test_accuracy", "test_auc"),
}
_WORDS_OF_HIGHER = frozenset({"acc", "accuracy", "auc", "ap", "f1", "hits", "mrr", "ndcg", "precision", "recall"})
_WORDS_OF_LOWER = frozenset({"error", "loss", "mae", "mse", "perplexity", "rmse", "seconds"})


@lru_cache(1024)
def metric_of(name: str) -> Metric:
    """The metric with this name. An unknown name is a curve, or a rate if it ends with `_per_second`."""
    if known := KNOWN.get(name):
        return known
    split, _, measure = name.partition("_")
    if split in ("train", *_SCORES) and (match := _MEASURES.fullmatch(measure)):
        is_higher = match["higher"] or match["own"] == "score"
        role = Role.RESULT if split == "test" else Role.CURVE
        return Metric(name, f"{split} {match['name'] or measure}", role, Better.HIGHER if is_higher else Better.LOWER)
    words = re.split(r"[\W_]+", name.lower())
    if name.endswith("_per_second"):
        what = name.removesuffix("_per_second").replace("_", " ")
        return Metric(name, f"{what} per second", Role.RATE, Better.HIGHER, f"{what}/s")
    higher, lower = _WORDS_OF_HIGHER.intersection(words), _WORDS_OF_LOWER.intersection(words)
    better = Better.LOWER if lower else Better.HIGHER if higher else Better.NEITHER
    label, unit = name.replace("_", " ").strip() or name, "s" if words[-1] == "seconds" else ""
    return Metric(name, label, Role.CURVE, better, unit)


def score_name(split: str, measure: str, *, lower_is_better: bool) -> str:
    """The name in `metrics.jsonl` of the score on a split ("train", "val", "test") by this metric, or own function."""
    match = _MEASURES.fullmatch(measure.lower())
    if match and not match["own"] and bool(match["higher"]) != lower_is_better:
        return f"{split}_{measure.lower()}"
    return f"{split}_{'error' if lower_is_better else 'score'}_{measure}"


def score_of(metrics: Mapping[str, Number], split: str) -> tuple[Metric, Number] | None:
    """The score on a split ("val", "test") and its value: accuracy or AUC, or another."""
    names = (*_SCORES[split], *(name for name in metrics if is_other_score(name) and name.startswith(f"{split}_")))
    return next(((metric_of(name), metrics[name]) for name in names if name in metrics), None)


def is_other_score(name: str) -> bool:
    """Whether it is a score on the validation or test split that is not among the `KNOWN`."""
    split, _, measure = name.partition("_")
    return name not in KNOWN and split in _SCORES and _MEASURES.fullmatch(measure) is not None


def own_metrics(metrics: Mapping[str, Number], most: int = 3) -> dict[str, Number]:
    """Values that a user's own program logged under its own names: the first `most` curves by name."""
    own = (
        name
        for name in sorted(metrics)
        if name not in KNOWN and not is_other_score(name) and metric_of(name).role is Role.CURVE
    )
    return {name: metrics[name] for name in islice(own, most)}


def counted_examples(metrics: Mapping[str, Number]) -> str:
    """The examples behind the test score: `1000 nodes`; empty if unknown."""
    counts = (metric for name, metric in KNOWN.items() if name.startswith("test_") and metric.unit and name in metrics)
    return next((f"{metric.text(metrics[metric.name])} {metric.unit}" for metric in counts), "")
