"""The best value a run has reached so far."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from clusterctl.observe.lines import MOST_BYTES, GrowingRecords
from clusterctl.observe.measurements import parse_measurement
from clusterctl.observe.ranking import judged_by
from clusterctl.runs.vocabulary import Better

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.runs.layout import RunDir
    from clusterctl.runs.vocabulary import Metric, Number


def best_value(run: RunDir, newest: Mapping[str, Number]) -> tuple[Metric, Number] | None:
    """The best value of the run's ranking metric over all attempts, from a sample if the run is long.

    `newest` has the newest value of each metric. None if no metric has a preferred direction.
    """
    metric = judged_by(newest)
    if metric is None:
        return None
    attempts = run.attempts()
    found: list[Number] = [newest[metric.name]]
    for attempt in attempts:
        records = GrowingRecords(attempt.metrics, MOST_BYTES // len(attempts)).read()
        measurements = (parse_measurement(record).values for record in records)
        found += (values[metric.name] for values in measurements if metric.name in values)
    finite = [value for value in found if math.isfinite(value)]
    if not finite:
        return None
    return metric, max(finite) if metric.better is Better.HIGHER else min(finite)
