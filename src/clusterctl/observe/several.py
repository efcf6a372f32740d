"""Several runs at one moment, for one report: their settings, their ranking, the curves of the best."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.errors import UsageError
from clusterctl.observe.comparison import configuration
from clusterctl.observe.history import History
from clusterctl.observe.ranking import ranked
from clusterctl.observe.status import report
from clusterctl.observe.sweep_summary import summarise
from clusterctl.observe.sweeps import read_sweep, values_of
from clusterctl.slurm import Slurm
from clusterctl.spec.differences import varying
from clusterctl.spec.keys import as_toml
from clusterctl.spec.records import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from clusterctl.errors import ConfigError, SlurmError
    from clusterctl.observe.stage import Status
    from clusterctl.observe.status import Report
    from clusterctl.runs.layout import RunDir, SweepDir
    from clusterctl.runs.vocabulary import Metric, Number
    from clusterctl.spec import Cluster

MOST_CURVES = 32  # runs whose curves are read


@dataclass(frozen=True)
class RankedRun:
    """One of several runs: its short name, its values of the keys that differ, its score."""

    name: str
    status: Status
    settings: Mapping[str, str]
    score: Number | None = None
    history: History | None = None


@dataclass(frozen=True)
class Several:
    """Runs at one moment, the best first, then those without a value of `metric`. `keys` are those that differ."""

    title: str
    as_of: float
    members: tuple[RankedRun, ...]
    keys: tuple[str, ...]
    metric: Metric | None
    problems: tuple[ConfigError | SlurmError, ...] = ()
    is_sweep: bool = False
    seconds_left: float | None = None


def examine_sweep(
    sweep: SweepDir,
    metric: str | None = None,
    slurm_of: Callable[[Cluster], Slurm] = Slurm.of,
    clock: Callable[[], float] = time.time,
) -> Several:
    """The runs of `sweep`. Raises ConfigError if it or all its runs cannot be read, UsageError without the metric."""
    record = read_sweep(sweep)
    found = report(record.runs, slurm_of, clock)
    settings = {run: values_of(row) for run, row in zip(record.runs, record.settings, strict=True)}
    names = {run: str(place) for place, run in enumerate(record.runs)}
    members, ranked_by = _ranked(found, metric, settings, names)
    left = summarise(record, found.statuses, found.as_of, metric).seconds_left
    return Several(
        title=sweep.id,
        as_of=found.as_of,
        members=members,
        keys=record.keys,
        metric=ranked_by,
        problems=found.problems,
        is_sweep=True,
        seconds_left=left,
    )


def examine_runs(
    runs: Sequence[RunDir],
    metric: str | None = None,
    slurm_of: Callable[[Cluster], Slurm] = Slurm.of,
    clock: Callable[[], float] = time.time,
) -> Several:
    """Any `runs`. Raises ConfigError if none can be read, and UsageError if none has the metric."""
    found = report(runs, slurm_of, clock)
    different = varying(*(configuration(status.record) for status in found.statuses))
    settings = {
        status.record.run: {key: _text(values[place]) for key, values in different.items()}
        for place, status in enumerate(found.statuses)
    }
    members, ranked_by = _ranked(found, metric, settings, {run: run.id for run in runs})
    jobs = ", ".join(dict.fromkeys(status.record.job.name for status in found.statuses))
    return Several(f"{len(runs)} runs of {jobs}", found.as_of, members, tuple(different), ranked_by, found.problems)


def _ranked(
    found: Report, metric: str | None, settings: Mapping[RunDir, Mapping[str, str]], names: Mapping[RunDir, str]
) -> tuple[tuple[RankedRun, ...], Metric | None]:
    """The readable runs, the best first, and their ranking metric."""
    if not found.statuses:
        raise found.problems[0]
    scores = ranked(found.statuses, metric)
    if metric is not None and not scores:
        raise _no_such_metric(metric, found.statuses)
    by_run = {one.status.record.run: one.value for one in scores}
    rest = [status for status in found.statuses if status.record.run not in by_run]
    members = []
    for place, status in enumerate([*(one.status for one in scores), *rest]):
        run = status.record.run
        history = _history(status) if place < MOST_CURVES else None
        members.append(RankedRun(names[run], status, settings[run], by_run.get(run), history))
    return tuple(members), scores[0].metric if scores else None


def _history(status: Status) -> History:
    history = History(status.record.run, all_ranks=False)
    history.update(status.attempts)
    return history


def _no_such_metric(name: str, statuses: Sequence[Status]) -> UsageError:
    known = sorted({known for status in statuses for known in status.metrics} - {name})  # its values may all be NaN
    close = nearest(name, dict.fromkeys(known))
    named = f"one of {', '.join(known[:20])}" if known else "they have not logged any metrics yet"
    return UsageError(f"no value of {name} in these runs", f"did you mean {close}?" if close else named)


def _text(value: object) -> str:
    return value if isinstance(value, str) else as_toml(value)
