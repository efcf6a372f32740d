"""The GPU and CPU hours used by runs, grouped by user, job or week, and what one run requested and used.

From the run directories alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

from clusterctl.launcher.api.find import age_seconds, find, query
from clusterctl.launcher.api.remote.operations import suggesting
from clusterctl.launcher.config.shown import Shown
from clusterctl.launcher.observe.lines import GrowingRecords, last_lines
from clusterctl.launcher.observe.measurements import measurements_in, pace_of, parse_measurement, repeated_from
from clusterctl.launcher.observe.needs import needs_of, used_in
from clusterctl.launcher.observe.run_record import read_record
from clusterctl.launcher.observe.status import statuses_of
from clusterctl.launcher.observe.telemetry import parse_sample, telemetry_files
from clusterctl.shared.errors import ConfigError, UsageError
from clusterctl.shared.record.files import modified_at, names_in
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.ownership import owner_name
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from clusterctl.launcher.observe.needs import Needs
    from clusterctl.launcher.observe.state import Status
    from clusterctl.launcher.observe.telemetry import Sample
    from clusterctl.shared.errors import ClusterctlError
    from clusterctl.shared.record.layout import Attempt


@dataclass(frozen=True)
class UsageReport(Shown):
    """The usage of a folder's runs from `since` (None: all time) until `as_of`, in seconds since the epoch."""

    as_of: float
    since: float | None
    by: str
    rows: tuple[UsageRow, ...]
    total: UsageRow
    left_out: tuple[str, ...] = ()  # the nodes that spare ones have replaced, one line for each run
    problems: tuple[ClusterctlError, ...] = ()


@suggesting
def usage(cluster: str | None = None, *, by: str = "user", since: str | float | None = None) -> UsageReport:
    """The hours of all attempts of the runs of `cluster`, including active ones; works without Slurm's accounting.

    `by` is "user", "job" or "week"; `since` ("30d", or seconds) limits the period. Raises UsageError.
    """
    if by not in NAMES:
        raise UsageError(f"no such grouping: {by}", f"one of {', '.join(NAMES)}")
    seconds = age_seconds("since", since)
    found = query(cluster=cluster).look()
    first = None if seconds is None else found.as_of - seconds
    stretches: list[Stretch] = []
    for status in found.statuses:
        with suppress(FileNotFoundError):  # the run is being removed
            stretches += stretches_of(status, found.as_of, first)
    total = row_of("total", within(stretches, first))
    last = {stretch.run: stretch.left_out for stretch in sorted(stretches, key=lambda one: one.start)}
    lines = tuple(f"{run}: {'; '.join(left_out)}" for run, left_out in last.items() if left_out)
    return UsageReport(found.as_of, first, by, tuple(summed(stretches, by, first)), total, lines, found.problems)


@dataclass(frozen=True)
class RunUsage:
    """What one run requested of each node, used, and needs. Shares are from 0 to 1, over all attempts."""

    as_of: float
    status: Status
    needs: Needs
    gpu_busy: float | None
    cpu_busy: float | None
    problems: tuple[ClusterctlError, ...] = ()


def usage_of(name: str, cluster: str | None = None) -> RunUsage:
    """The resources of the run `name`, by its telemetry. Raises what `find` raises, and ConfigError."""
    run = find(name, cluster).directory
    found = statuses_of([run])
    if not found.statuses:
        raise found.problems[0]
    (status,) = found.statuses
    busy = row_of(run.id, stretches_of(status, found.as_of))
    needs = needs_of(status, used_in(run.attempts()), found.as_of)
    return RunUsage(found.as_of, status, needs, busy.gpu_busy, busy.cpu_busy, found.problems)


# Resource usage from run directories: GPU-hours and CPU-hours, their utilization, and repeated steps.


_MOST_NODES = 4  # whose telemetry is read per attempt, to represent all
_MOST_BYTES = 65536  # of each, evenly spread
_HEAD_RECORDS = 64  # of an attempt's metrics, which include its first step


@dataclass(frozen=True)
class Stretch:
    """A period in which an attempt held its nodes, or a part of it, in seconds since the epoch.

    `gpus` and `cpus` are the totals requested on all nodes, `gpu_busy` and `cpu_busy` the shares in use (None: not
    measured), `repeated` the share of time whose steps a later attempt repeated, `restarting` the one before the first
    step of an attempt that went on from another, `spare` the share of the nodes that were held without being used.
    `left_out` are those that were replaced, in words.
    """

    run: str
    user: str
    job: str
    start: float
    end: float
    nodes: int
    gpus: int
    cpus: int
    gpu_busy: float | None = None
    cpu_busy: float | None = None
    repeated: float = 0.0
    restarting: float = 0.0
    spare: float = 0.0
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class UsageRow:
    """The total of some stretches. Shares are from 0 to 1, None if not measured or nothing was used."""

    name: str
    runs: int
    gpu_hours: float
    cpu_hours: float
    gpu_busy: float | None
    cpu_busy: float | None
    repeated: float | None
    restarting: float | None
    spare: float | None = None


def week_of(moment: float) -> str:
    """The ISO 8601 week in this machine's time zone: `2026-W05`."""
    year, week, _ = datetime.fromtimestamp(moment).isocalendar()  # noqa: DTZ006 - the user's own weeks
    return f"{year}-W{week:02}"


NAMES: dict[str, Callable[[Stretch], str]] = {
    "user": lambda stretch: stretch.user,
    "job": lambda stretch: stretch.job,
    "week": lambda stretch: week_of(stretch.start),
}


def summed(stretches: Iterable[Stretch], by: str, since: float | None = None) -> list[UsageRow]:
    """One row per user, job or week; weeks in order, users and jobs by usage, highest first."""
    found: dict[str, list[Stretch]] = defaultdict(list)
    for stretch in within(stretches, since):
        for part in by_week(stretch) if by == "week" else (stretch,):
            found[NAMES[by](part)].append(part)
    rows = [row_of(name, parts) for name, parts in sorted(found.items())]
    return rows if by == "week" else sorted(rows, key=lambda row: (row.gpu_hours, row.cpu_hours), reverse=True)


def within(stretches: Iterable[Stretch], since: float | None) -> Iterator[Stretch]:
    """The parts of the stretches after `since`."""
    for stretch in stretches:
        if since is None or stretch.start >= since:
            yield stretch
        elif stretch.end > since:
            yield _part(stretch, since, stretch.end)


def by_week(stretch: Stretch) -> Iterator[Stretch]:
    """The stretch, split at the start of each Monday."""
    start = stretch.start
    while True:
        day = datetime.fromtimestamp(start).replace(hour=0, minute=0, second=0, microsecond=0)  # noqa: DTZ006
        monday = (day + timedelta(days=7 - day.weekday())).timestamp()
        yield _part(stretch, start, min(monday, stretch.end))
        if monday >= stretch.end:
            return
        start = monday


def row_of(name: str, stretches: Iterable[Stretch]) -> UsageRow:
    """The sum of the stretches."""
    found = list(stretches)
    return UsageRow(
        name,
        len({stretch.run for stretch in found}),
        sum(_hours(stretch) * stretch.gpus for stretch in found),
        sum(_hours(stretch) * stretch.cpus for stretch in found),
        _mean((stretch.gpu_busy, _hours(stretch) * stretch.gpus) for stretch in found),
        _mean((stretch.cpu_busy, _hours(stretch) * stretch.cpus) for stretch in found),
        _mean((stretch.repeated, _hours(stretch) * stretch.nodes) for stretch in found),
        _mean((stretch.restarting, _hours(stretch) * stretch.nodes) for stretch in found),
        _mean((stretch.spare, _hours(stretch) * stretch.nodes) for stretch in found),
    )


def stretches_of(status: Status, now: float, since: float | None = None) -> Iterator[Stretch]:
    """The usage of a run until `now`; attempts that ended before `since` are not read."""
    record = status.record
    user, spans = owner_name(record.run.path), status.spans(now)
    records = [record]
    if record.resumed:  # earlier submissions, which may have had other resources, latest first
        with suppress(OSError):
            names = sorted(filter(str.isdecimal, names_in(record.run.submissions)), key=int, reverse=True)
            for name in names:
                with suppress(ConfigError):  # damaged
                    records.append(read_record(RunDir(record.run.submissions / name)))
    attempts = (record.run.attempt(evidence.number) for evidence, _, _ in spans)
    for (evidence, start, until), (attempt, repeated) in zip(spans, repeated_from(attempts, _head), strict=False):
        is_newest = evidence is spans[0][0]
        is_active = is_newest and status.sure and not status.state.ended and status.state is not State.QUEUED
        end = until
        if evidence.end is None and not is_active:  # its end was not recorded: take its last sign of life
            files = (attempt.metrics, attempt.host_log, *attempt.beat_files().values())
            written = (modified_at(path) / 1e9 for path in (*files, *telemetry_files(attempt).values()))
            end = min(until, max(start, *written))
        if since is not None and end <= since:
            return
        asked = next((one for one in records if one.past_attempts <= evidence.number), record)
        resources, tasks = asked.job.resources, asked.tasks_per_node
        gpu_busy, cpu_busy = _busy(attempt)
        yield Stretch(
            run=record.run.id,
            user=user,
            job=record.job.name,
            start=start,
            end=end,
            nodes=resources.held_nodes,
            gpus=resources.held_nodes * (resources.gpus_per_node or 0),
            cpus=resources.held_nodes * tasks * resources.cpus_per_task,
            gpu_busy=gpu_busy,
            cpu_busy=cpu_busy,
            repeated=_share_of_steps(attempt, repeated, end - start),
            restarting=_share_before_steps(attempt, start, end) if evidence.number else 0.0,
            spare=1 - (evidence.rank_count or resources.nodes * tasks) / (resources.held_nodes * tasks),
            left_out=tuple(map(str, evidence.left_out)),
        )


def _head(path: Path) -> Iterator[dict[str, Any]]:
    return islice(GrowingRecords(path, _MOST_BYTES).read(), _HEAD_RECORDS)


def _busy(attempt: Attempt) -> tuple[float | None, float | None]:
    """The shares of GPUs and CPUs in use, from samples of a few nodes."""
    files = list(telemetry_files(attempt).values())
    read = (GrowingRecords(path, _MOST_BYTES).read() for path in files[:: -(-len(files) // _MOST_NODES) or 1])
    samples = [sample for records in read for record in records if (sample := parse_sample(record))]
    gpus = (_mean((gpu.utilisation, 1.0) for gpu in sample.gpus) for sample in samples)
    return (
        _mean((share and share / 100, _seconds(sample)) for share, sample in zip(gpus, samples, strict=True)),
        _mean(
            (min(1.0, sample.cpu / sample.cpus) if sample.cpu is not None and sample.cpus else None, _seconds(sample))
            for sample in samples
        ),
    )


def _seconds(sample: Sample) -> float:
    return 1.0 if sample.seconds is None else sample.seconds


def _share_of_steps(attempt: Attempt, first: float, seconds: float) -> float:
    """The share of an attempt's time in which it completed the steps from `first` on, from its final pace."""
    lines = last_lines(attempt.metrics) if first < math.inf else []
    last = next((step for one in measurements_in(reversed(lines)) if (step := one.step) is not None), None)
    pace = pace_of(lines)
    if last is None or pace is None or seconds <= 0:
        return 0.0
    return min(1.0, max(0.0, last - first + 1) / pace.steps_per_second / seconds)


def _share_before_steps(attempt: Attempt, start: float, end: float) -> float:
    """The share of an attempt's time before it completed its first step; 0 for a program that logs none."""
    measured = [one for one in map(parse_measurement, _head(attempt.metrics)) if one.step is not None]
    times = (one.time for one in measured if one.step != measured[0].step or "loss" in one.values)
    first = next((time for time in times if time is not None), None)
    return 0.0 if first is None or end <= start else min(1.0, max(0.0, first - start) / (end - start))


def _part(stretch: Stretch, start: float, end: float) -> Stretch:
    """A part of a stretch. Its restart is at its beginning, and repeated steps are at its end."""
    seconds = stretch.end - stretch.start
    begun, lost = stretch.start + stretch.restarting * seconds, stretch.end - stretch.repeated * seconds
    repeated, restarting = 0.0, 0.0
    if end > start:
        repeated = max(0.0, end - max(start, lost)) / (end - start)
        restarting = max(0.0, min(end, begun) - start) / (end - start)
    return replace(stretch, start=start, end=end, repeated=repeated, restarting=restarting)


def _hours(stretch: Stretch) -> float:
    return (stretch.end - stretch.start) / 3600


def _mean(weighted: Iterable[tuple[float | None, float]]) -> float | None:
    """The weighted mean of the known values; None if there are none."""
    known = [(value, weight) for value, weight in weighted if value is not None and weight > 0]
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None
