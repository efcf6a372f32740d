"""Sweeps: their runs and settings (sweep.json), and runs ranked by a metric."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.launcher.config.shown import Shown
from clusterctl.launcher.observe.lines import MOST_BYTES, GrowingRecords
from clusterctl.launcher.observe.measurements import parse_measurement, records_once
from clusterctl.launcher.observe.run_names import NEWEST, is_run_id, job_name, submission
from clusterctl.launcher.observe.runs import newest_first
from clusterctl.shared.errors import ConfigError, UsageError
from clusterctl.shared.record.fields import read_fields
from clusterctl.shared.record.files import exists
from clusterctl.shared.record.layout import SWEEP_FORMAT, RunDir, SweepDir
from clusterctl.shared.record.metrics import KNOWN, Better, metric_of, own_metrics, score_of
from clusterctl.shared.record.plain_text import numbers_in
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from clusterctl.launcher.observe.state import Status
    from clusterctl.shared.record.layout import ArrayDir
    from clusterctl.shared.record.metrics import Metric, Number


@dataclass(frozen=True)
class SweepRecord:
    """A sweep as submitted. `settings` are the `KEY=VALUE` of each run, by index."""

    sweep: SweepDir
    created: float
    settings: tuple[tuple[str, ...], ...]
    program: tuple[str, ...] = ()  # with names in braces that are replaced by settings
    at_once: int | None = None
    array: tuple[int, ...] = ()  # the indices of an array of a batch script, whose elements differ by them alone

    @property
    def places(self) -> Sequence[int]:
        """The number of each run, which follows the dot in its id."""
        return self.array or range(len(self.settings))

    @property
    def runs(self) -> tuple[RunDir, ...]:
        return tuple(map(self.sweep.run, self.places))

    @property
    def keys(self) -> tuple[str, ...]:
        """The varied keys, in the order given."""
        return tuple(dict.fromkeys(key for settings in self.settings for key in values_of(settings)))


def values_of(settings: Iterable[str]) -> dict[str, str]:
    """The settings of one run by key, as typed."""
    return {key: value for key, _, value in (setting.partition("=") for setting in settings)}


def read_sweep(sweep: SweepDir) -> SweepRecord:
    """The record of `sweep`. Raises ConfigError if sweep.json is missing or damaged."""
    fields = read_fields(sweep.sweep_json)
    array: tuple[int, ...] = ()
    with suppress(ValueError):  # not an array, or damaged
        array = tuple(numbers_in(fields.text("array")))
    runs = [[]] * len(array) if array else fields.content.get("runs")
    created = fields.moment("created")
    rows = runs if isinstance(runs, list) else []
    whole = rows and all(isinstance(one, list) and all(isinstance(text, str) for text in one) for one in rows)
    if fields.whole("schema_version") != SWEEP_FORMAT or not whole or created is None:
        why = fields.problem or ("missing" if fields.absent else "damaged, or written by another version of clusterctl")
        raise ConfigError(f"cannot read {sweep.sweep_json}: {why}", f"its runs can still be named: {sweep.id}.0")
    settings = tuple(map(tuple, rows))
    return SweepRecord(sweep, created, settings, fields.texts("program"), fields.whole("at_once"), array)


def sweep_named(folder: Path, name: str) -> SweepDir | None:
    """The sweep called `name`: its id, or `@last` or a job's name if the newest submission is a sweep."""
    if is_run_id(name) and exists((named := SweepDir.of(folder, name)).sweep_json):
        return named
    newest = next(newest_first(folder, lambda run: name in (NEWEST, job_name(run))), None)
    sweep = submission(newest.id) if newest else ""
    return SweepDir.of(folder, sweep) if newest and sweep != newest.id else None


def runs_of(folder: Path, name: str) -> tuple[RunDir, ...]:
    """The run with the id `name`, or all runs of that sweep. Raises what `read_sweep` raises."""
    sweep = SweepDir.of(folder, name)
    return read_sweep(sweep).runs if exists(sweep.sweep_json) else (RunDir(folder / name),)


def one_run(sweep: SweepDir) -> UsageError:
    """The error for a sweep given instead of a run."""
    return UsageError(
        f"{sweep.id} is a sweep",
        f"name one of its runs, such as {read_sweep(sweep).runs[0].id}; list them with: clusterctl status {sweep.id}",
    )


def place_in_array(run: RunDir) -> tuple[ArrayDir, int] | None:
    """The array in which a sweep's run was last submitted, and its index there; None for other runs."""
    sweep = submission(run.id)
    if sweep == run.id:
        return None
    for array in reversed(SweepDir.of(run.path.parent, sweep).arrays()):
        runs = read_fields(array.array_json).texts("runs")
        if run.id in runs:
            return array, runs.index(run.id)
    return None


# Ranking of runs by a metric, the best value that a run has reached, and the summary of a sweep.


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
    found = []
    for status in statuses:
        metric = judged_by(status.metrics) if name is None else metric_of(name)
        value = status.metrics.get(metric.name) if metric else None
        if metric and value is not None and math.isfinite(value):
            found.append(Ranked(status, metric, value))
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


def best_value(run: RunDir, newest: Mapping[str, Number]) -> tuple[Metric, Number] | None:
    """The best value of the run's ranking metric over all attempts, from a sample if the run is long.

    `newest` has the newest value of each metric. None if no metric has a preferred direction.
    """
    metric = judged_by(newest)
    if metric is None:
        return None
    attempts = run.attempts()
    records = records_once(attempts, lambda path: GrowingRecords(path, MOST_BYTES // len(attempts)).read())
    measurements = (parse_measurement(record).values for _, record in records)
    found = [newest[metric.name], *(values[metric.name] for values in measurements if metric.name in values)]
    finite = [value for value in found if math.isfinite(value)]
    if not finite:
        return None
    return metric, max(finite) if metric.better is Better.HIGHER else min(finite)


@dataclass(frozen=True)
class SweepSummary(Shown):
    """A sweep at one moment: its runs in each state, the best so far, and the estimated time left."""

    record: SweepRecord
    statuses: tuple[Status, ...]
    states: Mapping[State, int]  # in lifecycle order
    best: Ranked | None
    seconds_left: float | None  # until all have ended, estimated from those that have; None if unknown

    @property
    def ended(self) -> int:
        return sum(count for state, count in self.states.items() if state.ended)


def summarise(record: SweepRecord, statuses: Sequence[Status], now: float, metric: str | None = None) -> SweepSummary:
    """The summary of the sweep's runs `statuses`; the best by `metric`, else by the default ranking metric."""
    counts = Counter(status.state for status in statuses)
    states = {state: counts[state] for state in State if counts[state]}
    best = next(iter(ranked(statuses, metric)), None)
    return SweepSummary(record, tuple(statuses), states, best, _seconds_left(record, statuses, now))


def states_in_words(counts: Mapping[State, int]) -> str:
    """Such as `9 finished, 2 training`, in lifecycle order."""
    return ", ".join(f"{counts[state]} {state}" for state in State if counts.get(state))


def _seconds_left(record: SweepRecord, statuses: Sequence[Status], now: float) -> float | None:
    """The time left, assuming that all runs take as long as the finished ones, with as many at once as now."""
    going = [status for status in statuses if not status.state.ended and status.state is not State.QUEUED]
    waiting = sum(status.state is State.QUEUED for status in statuses)
    took = [ran for status in statuses if status.state is State.FINISHED and (ran := status.ran(now))]
    left = [one.seconds_left(now) for one in going]
    took = took or [(one.ran(now) or 0.0) + more for one, more in zip(going, left, strict=True) if more is not None]
    if not took or not (going or waiting):
        return None
    usual = statistics.median(took)
    rest = sum(more if more is not None else usual / 2 for more in left)  # without a pace: half done on average
    at_once = max(1, min(len(going) or 1, record.at_once or len(going) or 1))
    return (rest + waiting * usual) / at_once
