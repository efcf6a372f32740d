"""The status of many runs, from their files and, if those are not enough, one query to Slurm for all of them.

Also in the order of a column, and as rows of a table, of which those of ended runs are cached (`ended_runs`).
"""

from __future__ import annotations

import itertools
import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from clusterctl.launcher.observe.attempt import Answer, read_evidence
from clusterctl.launcher.observe.ended_runs import ended_runs
from clusterctl.launcher.observe.measurements import progress
from clusterctl.launcher.observe.run_names import FAILED, job_name, run_ids, submission
from clusterctl.launcher.observe.run_record import adopt, make_directory, newer_records, read_record, unreadable
from clusterctl.launcher.observe.runs import (
    MOST_COUNTED,
    is_written,
    name_by_job,
    newest_first,
    newest_ids,
    newest_submissions,
)
from clusterctl.launcher.observe.script_runs import note_ends
from clusterctl.launcher.observe.slurm_log import accounted, note_end, noted_end
from clusterctl.launcher.observe.state import judge, settled
from clusterctl.launcher.observe.sweeps import place_in_array
from clusterctl.launcher.slurm import JobState, Slurm
from clusterctl.shared.errors import ConfigError, NotFoundError, SlurmError, UsageError
from clusterctl.shared.record.files import lateness
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.record.metrics import Better, metric_of, score_of
from clusterctl.shared.record.states import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from clusterctl.launcher.observe.attempt import RunEvidence
    from clusterctl.launcher.observe.ended_runs import EndedRuns, Row
    from clusterctl.launcher.observe.state import Status
    from clusterctl.launcher.slurm import Snapshot
    from clusterctl.shared.spec import Cluster

    Key = Callable[[Status, float], float | None]


@dataclass(frozen=True)
class RunStatuses:
    """Runs at the time `as_of`, and problems: clusters that do not respond, damaged runs."""

    as_of: float
    statuses: tuple[Status, ...]
    problems: tuple[ConfigError | SlurmError, ...]
    snapshots: Mapping[tuple[str, str | None], Snapshot | None] = field(default_factory=dict)  # by controller
    more: int = 0  # older ones that were left out


def no_slurm(_: Cluster) -> Slurm:
    """For `statuses_of` on a node: thousands of ending jobs must not query the controller individually."""
    raise SlurmError("Slurm is not queried from a node")


def statuses_of(
    runs: Iterable[RunDir],
    slurm_of: Callable[[Cluster], Slurm] = Slurm.of,
    clock: Callable[[], float] = time.time,
    ended: EndedRuns | None = None,
) -> RunStatuses:
    """The status of `runs`, in order. A damaged run or an unresponsive Slurm does not affect the others.

    `ended` caches runs that had already ended, so that they are not read again.
    """
    problems: list[ConfigError | SlurmError] = []
    found: list[RunEvidence] = []
    for run in runs:
        try:
            found.append(ended.evidence(run) if ended else read_evidence(read_record(run)))
        except ConfigError as error:
            problems.append(error)
        except OSError as error:
            problems.append(unreadable(run, error.filename or run.path, error.strerror or str(error)))
    snapshots: dict[tuple[str, str | None], Snapshot | None] = {}  # by controller: runs may be on several clusters
    for index, evidence in enumerate(found):
        if settled(evidence):
            continue
        try:
            evidence.record.require_ours()
        except ConfigError as error:
            problems.append(error)
            continue
        controller = evidence.record.cluster.controller
        if controller not in snapshots:
            try:
                snapshots[controller] = asked = slurm_of(evidence.record.cluster).snapshot()
                if problem := asked.problem:
                    stale = f"{problem.message}; Slurm's data is as of {clock() - asked.taken_at:.0f} s ago"
                    problems.append(SlurmError(stale, problem.hint))
            except SlurmError as error:
                snapshots[controller] = None
                problems.append(error)
        snapshot = snapshots[controller]
        if snapshot is not None:
            found[index] = answered(evidence, snapshot)
    found = note_ends(_settled_by_accounting(found, slurm_of, clock), slurm_of)
    now = clock()
    for index, evidence in enumerate(found):
        if evidence.answer and _is_at_work(evidence, now):
            found[index] = replace(evidence, answer=replace(evidence.answer, elsewhere=True))
            problems.append(unknown_job(evidence.job_id, evidence.record.run))
    return RunStatuses(now, tuple(judge(evidence, now) for evidence in found), tuple(problems), snapshots)


def status_of_run(run: RunDir) -> Status:
    """The status of one run. Raises ConfigError for a damaged run."""
    found = statuses_of([run])
    if not found.statuses:
        raise found.problems[0]
    return found.statuses[0]


def answered(evidence: RunEvidence, snapshot: Snapshot) -> RunEvidence:
    """`evidence` with Slurm's answer. A job found by its folder is recorded in the run: its submitter may have died."""
    run = evidence.record.run
    past = evidence.record.past_jobs
    evidence = _in_its_successor(evidence, snapshot)
    if evidence.job_id:
        job = snapshot.jobs.get(evidence.job_id)
    elif (job := snapshot.in_folder(run.path, past)) is None and (place := place_in_array(run)):
        job = snapshot.in_folder(place[0].path, past, place[1])
    if job is None:  # it may have started and ended between reading its files and the query
        evidence = _in_its_successor(read_evidence(evidence.record), snapshot)
    job_id = evidence.job_id or (job.job_id if job else None)
    if job_id:
        with suppress(OSError):  # another user's run, or a full disk
            adopt(run, job_id)
    # Answers are shared between commands, so one may be from before the run was submitted.
    early = job is None and snapshot.taken_at <= (evidence.submitted_at or evidence.record.created)
    if (job is None or job.state.ended) and not early and snapshot.problem is None:
        with suppress(OSError):  # an element of an array that will not make its directory itself
            make_directory(run, job_id)
    late = lateness(run.path) if job and job.state.ended else 0.0
    if job and job.state.ended and not settled(evidence):
        note_end(run, job)
    answer = Answer(job, early, stale=snapshot.problem is not None)
    return replace(evidence, job_id=job_id, answer=answer, late_seconds=late)


# A job that ended so does not go on in its successor, which leaves when it starts.
_FINAL = (JobState.CANCELLED, JobState.TIMEOUT, JobState.DEADLINE)


def _in_its_successor(evidence: RunEvidence, snapshot: Snapshot) -> RunEvidence:
    """`evidence` with the job that goes on after the one that the files show, if that has ended."""
    following, last = evidence.successor, evidence.last
    if following is None or (job := snapshot.jobs.get(following.job_id)) is None or job.state.ended:
        return evidence
    before = snapshot.jobs.get(evidence.job_id or "")
    if before and (not before.state.ended or (before.state in _FINAL and not (last and last.goes_on))):
        return evidence
    return replace(evidence, job_id=following.job_id)


def _settled_by_accounting(
    found: list[RunEvidence], slurm_of: Callable[[Cluster], Slurm], clock: Callable[[], float]
) -> list[RunEvidence]:
    """`found`, with the ends of jobs that neither squeue nor the run's files know, e.g. lost or preempted ones.

    What squeue has shown earlier is enough.
    """
    clusters = {evidence.record.cluster.controller: evidence.record.cluster for evidence in found}
    ended: dict[RunDir, JobState] = {}
    for controller, cluster in clusters.items():
        jobs = {}
        for evidence in found:
            run, job_id = evidence.record.run, _forgotten(evidence)
            if job_id is None or evidence.record.cluster.controller != controller:
                continue
            if end := noted_end(run, job_id, evidence.last.restart_count if evidence.last else 0):
                ended[run] = end
            elif cluster.is_slurm:
                jobs[run] = job_id
        for run, lines in (accounted(jobs, slurm_of(cluster).accounted, clock=clock) if jobs else {}).items():
            ended[run] = next(line.ended for line in lines if line.ended)
    return [
        replace(evidence, answer=replace(evidence.answer, ended=end))
        if evidence.answer and (end := ended.get(evidence.record.run))
        else evidence
        for evidence in found
    ]


def _forgotten(evidence: RunEvidence) -> str | None:
    """The job of a run whose end is unknown from its files, squeue and cancellation."""
    answer = evidence.answer
    if answer is None or answer.job or answer.early or answer.stale or evidence.cancelled_at is not None:
        return None
    return None if settled(evidence) else evidence.job_id


def unknown_job(job_id: str | None, run: RunDir) -> SlurmError:
    hint = "is it in the queue of another cluster, or of another login node?"
    return SlurmError(f"Slurm does not know job {job_id}, but its ranks write to {run.path}", hint)


_JUST_SECONDS = 10.0  # the heartbeats of living ranks are written each second


def _is_at_work(evidence: RunEvidence, now: float) -> bool:
    """Whether a run that would be lost has just written: then this is not the Slurm that has its job."""
    last = evidence.last
    if _forgotten(evidence) is None or last is None or last.exit_code is not None:
        return False
    if evidence.answer and evidence.answer.ended:
        return False
    for beats in evidence.record.run.attempt(last.number).beat_files().values():
        with suppress(OSError):
            if abs(now - beats.stat().st_mtime) < _JUST_SECONDS:
                return True
    return False


@dataclass(frozen=True)
class Filter:
    """Selects runs by name patterns (`cora*`), states, submission within the last `seconds`, and all of some tags."""

    names: tuple[str, ...] = ()
    states: frozenset[State] = frozenset()
    seconds: float | None = None
    tags: frozenset[str] = frozenset()

    def takes_id(self, run: str) -> bool:
        """Whether the id matches, without reading any file."""
        names = (run, job_name(run))
        return not self.names or any(fnmatchcase(name, pattern) for name in names for pattern in self.names)

    def takes(self, state: State, created: float, now: float, tags: Iterable[str]) -> bool:
        in_time = self.seconds is None or now - created <= self.seconds
        return in_time and (not self.states or state in self.states) and self.tags <= {*tags}

    def since(self, now: float) -> float | None:
        """The earliest submission time that can match; earlier runs are not read."""
        return None if self.seconds is None else now - self.seconds

    @property
    def needs_reading(self) -> bool:
        return bool(self.states or self.tags) or self.seconds is not None


def newest(folder: Path, wanted: Filter, count: int | None, ended: EndedRuns | None = None) -> RunStatuses:
    """The status of the newest `count` runs in `folder` (None: all) that match `wanted`."""
    runs = newest_first(folder, wanted.takes_id, wanted.since(time.time()))
    if not wanted.needs_reading:
        found = statuses_of(itertools.islice(runs, count), ended=ended)
        return replace(found, more=_beyond(count, filter(wanted.takes_id, run_ids(folder))))
    if ended and wanted.states:
        runs = (run for run in runs if (state := ended.state(run)) is None or state in wanted.states)
    found = statuses_of(runs, ended=ended)
    matching = tuple(
        one for one in found.statuses if wanted.takes(one.state, one.record.created, found.as_of, one.record.job.tags)
    )
    return replace(found, statuses=matching[:count], more=len(matching) - len(matching[:count]))


def _beyond(count: int | None, names: Iterable[str]) -> int:
    """How many different `names` there are beyond `count` (None: all are taken)."""
    return 0 if count is None else max(0, len({*names}) - count)


# Runs in the order of a column of their table, or of any metric that they have logged.

_PLACES = {state: place for place, state in enumerate(State)}


def _negative(value: float | None) -> float | None:
    return None if value is None else -value


def _score(split: str) -> Key:
    def key(status: Status, now: float) -> float | None:  # noqa: ARG001 - as of the others
        found = score_of(status.metrics, split)
        return None if found is None else found[1] * (1 if found[0].better is Better.LOWER else -1)

    return key


# Column -> what is compared; the lowest comes first.
SORT_COLUMNS: dict[str, Key] = {
    "age": lambda status, now: now - status.record.created,
    "state": lambda status, _: _PLACES[status.state],
    "progress": lambda status, _: _negative(progress(status.metrics)),
    "eta": lambda status, now: status.seconds_left(now),
    "val": _score("val"),
    "test": _score("test"),
    "gpu": lambda status, _: _negative(status.attempt.gpu if status.attempt and not status.state.ended else None),
    "gpu-h": lambda status, now: _negative(status.gpu_hours(now)),
    "ran": lambda status, now: _negative(status.ran(now)),
    "tasks": lambda status, _: -status.record.job.resources.nodes * status.record.tasks_per_node,
}


def is_ascending(column: str) -> bool:
    """Whether `in_order` begins with the smallest value of `column`: of scores, almost all are better if higher."""
    if column in SORT_COLUMNS or column == "run":
        return column in ("run", "age", "state", "eta")
    return metric_of(column).better is Better.LOWER


def in_order(statuses: Iterable[Status], column: str, now: float, *, reverse: bool = False) -> list[Status]:
    """`statuses` by `column`, a name in `SORT_COLUMNS`, "run", or a metric: the best, newest or largest first.

    With `reverse`, the worst, oldest or smallest first. Runs without a value come last. Raises UsageError for a name
    that is neither a column nor logged by any run.
    """
    found = list(statuses)
    if column == "run":
        return sorted(found, key=lambda status: status.record.run.id, reverse=reverse)
    key = SORT_COLUMNS.get(column) or _metric(column, found)
    values = {status.record.run: key(status, now) for status in found}

    def place(status: Status) -> tuple[bool, float]:
        value = values[status.record.run]
        missing = value is None or math.isnan(value)
        return missing, 0.0 if value is None or missing else -value if reverse else value

    return sorted(found, key=place)


def _metric(name: str, statuses: list[Status]) -> Key:
    if statuses and not any(name in status.metrics for status in statuses):
        known = ["run", *SORT_COLUMNS, *sorted({one for status in statuses for one in status.metrics})]
        raise UsageError(f"nothing to sort by: {name}", f"one of {', '.join(known)}")
    sign = 1 if metric_of(name).better is Better.LOWER else -1
    return lambda status, _: sign * status.metrics[name] if name in status.metrics else None


# Runs as rows of a table. The rows of ended runs are cached (`ended_runs`).


@dataclass(frozen=True)
class Listing:
    """Runs at the time `as_of`, and the problems in reading them."""

    as_of: float
    rows: tuple[Row, ...]
    problems: tuple[ConfigError | SlurmError, ...] = ()
    looked: tuple[Status, ...] = ()  # of the rows that were not cached
    head: str = ""  # the headline of a sweep
    varied: tuple[str, ...] = ()  # columns for the settings varied by a sweep
    matching: tuple[Row, ...] = ()  # one per run, where `rows` combine those of a sweep or are only the newest
    more: int = 0  # rows that `count` left out; those of unread runs are counted by their names
    is_whole: bool = True  # False: older runs, if any, are not even among `matching`


def listing(
    folder: Path,
    wanted: Filter,
    count: int | None,
    row_of: Callable[[Status, float], Row],
    ended: EndedRuns,
    together: Callable[[Iterable[Row]], Iterable[Row]] = iter,
    *,
    counted: bool = False,
) -> Listing:
    """The newest `count` submissions in `folder` (None: all) that match `wanted`.

    `row_of` makes a row that is not cached, and `together` combines the rows of a sweep into one. With `counted`, all
    that match are read unless they are very many: their rows are `matching`.
    """
    is_whole, more = count is None or wanted.needs_reading, 0
    if counted and not is_whole:
        matching = (run for run in run_ids(folder) if wanted.takes_id(run))
        is_whole = not any(itertools.islice(matching, MOST_COUNTED, None))
    if is_whole:
        ids = [*newest_ids(folder, wanted.takes_id, wanted.since(time.time()))]
    else:
        ids = [*newest_submissions((run.id for run in newest_first(folder, wanted.takes_id)), count)]
        more = _beyond(count, map(submission, filter(wanted.takes_id, run_ids(folder))))
    where = os.fspath(folder)
    rows = {run: row for run in ids if (row := ended.row(where, run))}
    unknown = (run for run in ids if run not in rows and is_written(folder, run))
    looked = statuses_of((RunDir(folder / run) for run in unknown), ended=ended)
    for status in looked.statuses:
        run = status.record.run
        rows[run.id] = row = row_of(status, looked.as_of)
        ended.keep_row(run, row)
    found = (rows[run] for run in ids if run in rows)
    taken = [row for row in found if wanted.takes(row.state, row.created, looked.as_of, row.tags)]
    problems = (*looked.problems, *newer_records(status.record for status in looked.statuses))
    combined = [*together(taken)]
    shown = tuple(combined[:count])
    more += len(combined) - len(shown)
    return Listing(looked.as_of, shown, problems, looked.statuses, matching=tuple(taken), more=more, is_whole=is_whole)


# The states that `@failed` means.
_ENDED_BADLY = frozenset({State.FAILED, State.TIMED_OUT, State.PREEMPTED, State.LOST})


def meant(folder: Path, name: str) -> str:
    """`name`, or the ID of the run or sweep with that Slurm job; `@failed` is the newest that failed, timed out, was
    preempted or lost.
    """
    if name != FAILED:
        return name_by_job(folder, name)
    found = newest(folder, Filter(states=_ENDED_BADLY), 1, ended_runs(folder)).statuses
    if not found:
        raise NotFoundError(f"no run has failed in: {folder}", "see the runs with: clusterctl status")
    return found[0].record.run.id
