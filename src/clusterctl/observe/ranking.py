"""Ranking of runs, by a named metric or their default ranking metric."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.runs.vocabulary import KNOWN, Better, metric_of, own_metrics, score_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from clusterctl.observe.stage import Status
    from clusterctl.runs.vocabulary import Metric, Number


@dataclass(frozen=True)
class Ranked:
    """A run with the newest value of its ranking metric."""

    status: Status
    metric: Metric
    value: Number


def ranked(statuses: Iterable[Status], name: str | None = None) -> list[Ranked]:
    """The runs with a value of the metric `name`, else of the most common ranking metric, the best first.

    Of equal runs the newer comes first. NaN and infinite values do not count.
    """
    found = [one for status in statuses if (one := _ranked(status, name))]
    names = Counter(one.metric.name for one in found)
    if len(names) > 1:  # some runs only have a loss so far
        del names["loss"]
    chosen = max(names, key=lambda metric: names[metric], default=None)
    sign = -1 if metric_of(chosen or "").better is Better.LOWER else 1
    alike = [one for one in found if one.metric.name == chosen]
    return sorted(alike, key=lambda one: (sign * one.value, one.status.record.created), reverse=True)


def judged_by(metrics: Mapping[str, Number]) -> Metric | None:
    """The ranking metric: the validation score, else the test score, else one of the program's own, else the loss."""
    scores = (found[0] for split in ("val", "test") if (found := score_of(metrics, split)))
    own = (metric for name in own_metrics(metrics) if (metric := metric_of(name)).better is not Better.NEITHER)
    return next(scores, None) or next(own, None) or (KNOWN["loss"] if "loss" in metrics else None)


def _ranked(status: Status, name: str | None) -> Ranked | None:
    metric = judged_by(status.metrics) if name is None else metric_of(name)
    value = status.metrics.get(metric.name) if metric else None
    return Ranked(status, metric, value) if metric and value is not None and math.isfinite(value) else None
