"""Find runs by name or by criteria, and compare two of them.

Most commands import this module; what compares runs, with their curves and code, is imported only when it is used.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from clusterctl.launcher.api.remote.operations import operation, suggesting
from clusterctl.launcher.api.run import Run, Runs
from clusterctl.launcher.config import chosen_runs_folder
from clusterctl.launcher.observe.ended_runs import EndedRuns, ended_runs
from clusterctl.launcher.observe.run_names import FAILED, job_name, run_ids, submission
from clusterctl.launcher.observe.runs import find_run, newest_first
from clusterctl.launcher.observe.status import Filter, listing, meant, newest, statuses_of
from clusterctl.launcher.observe.status import Listing as Listing
from clusterctl.launcher.observe.status import in_order as in_order
from clusterctl.launcher.observe.sweeps import one_run, read_sweep, sweep_named
from clusterctl.launcher.slurm.jobs import job_typed
from clusterctl.shared.errors import UsageError
from clusterctl.shared.record.states import ENDED
from clusterctl.shared.record.states import State as State
from clusterctl.shared.spec.records import nearest
from clusterctl.shared.spec.values import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from clusterctl.launcher.observe.comparison import Comparison
    from clusterctl.launcher.observe.ended_runs import Row
    from clusterctl.launcher.observe.overview import Overview
    from clusterctl.launcher.observe.state import Status
    from clusterctl.launcher.observe.status import RunStatuses as RunStatuses
    from clusterctl.shared.record.layout import RunDir


_MANY = 50  # with more runs than this, the state of ended runs is cached in a file
# Names for several states at once.
STATE_GROUPS = {
    "ended": ENDED,
    "alive": frozenset(State) - ENDED,
    "running": frozenset(State) - ENDED - {State.QUEUED},
}


@operation()
def find(name: str, cluster: str | None = None) -> Run:
    """The run that `name` refers to: `@last`, `@failed`, an ID, a job's name (its newest run), its Slurm job, or the
    beginning of an ID.

    Raises NotFoundError with the nearest name, and UsageError if several IDs begin with `name`.
    """
    folder = chosen_runs_folder(cluster)
    name = meant(folder, name)
    if sweep := sweep_named(folder, name):
        raise one_run(sweep)
    return Run(find_run(folder, name).path)


def as_run(run: Run | str, cluster: str | None = None) -> Run:
    """`run`, or the run of that name. Raises what `find` raises."""
    return find(run, cluster) if isinstance(run, str) else run


def find_all(names: Iterable[str], cluster: str | None = None) -> list[Run]:
    """The runs with these names, each once; a sweep means all its runs. Raises what `find` raises."""
    folder = chosen_runs_folder(cluster)
    found: dict[Run, None] = {}
    for name in (meant(folder, name) for name in names):
        sweep = sweep_named(folder, name)
        runs = read_sweep(sweep).runs if sweep else (find_run(folder, name),)
        found |= {Run(run.path): None for run in runs}
    return list(found)


def living(name: str, cluster: str | None = None) -> str:
    """`name`, or if it is the name of a job, the newest of its runs or sweeps that has not ended.

    If all have ended, `name` itself.
    """
    folder = chosen_runs_folder(cluster)
    if not any(name == job_name(run) for run in run_ids(folder)):
        return name
    found = newest(folder, Filter((name,), STATE_GROUPS["alive"]), None, ended_runs(folder)).statuses
    return submission(found[0].record.run.id) if found else name


def checkable(name: str, cluster: str | None = None) -> str:
    """`name`, or the ID that it means if that does not begin with it, as of a Slurm job; `@last` stays as it is."""
    return find(name, cluster).id if name == FAILED or job_typed(name) else name


@operation()
def runs(
    *,
    state: str | Iterable[str] = (),
    name: str | Iterable[str] = (),
    since: str | float | None = None,
    tag: str | Iterable[str] = (),
    cluster: str | None = None,
    count: int | None = None,
) -> Runs:
    """The runs of `cluster`, newest first; unreadable runs are left out.

    Filters: one of the states `state` ("failed"; "running", "alive" and "ended" cover several), a job or ID matching
    `name` ("cora*"), submitted within `since` ("2d", or seconds), with every `tag`; `count` limits the result to the
    newest.
    """
    wanted = query(state=state, name=name, since=since, tag=tag, cluster=cluster, count=count)
    return Runs(Run(run.path) for run in wanted.list())


@operation()
def names(cluster: str | None = None) -> list[str]:
    """The IDs of the runs of `cluster`, newest first, without reading their files."""
    return run_ids(chosen_runs_folder(cluster))


@operation()
def look(
    *,
    state: str | Iterable[str] = (),
    name: str | Iterable[str] = (),
    since: str | float | None = None,
    tag: str | Iterable[str] = (),
    cluster: str | None = None,
    count: int | None = None,
) -> RunStatuses:
    """The status of the matching runs (arguments as for `runs`)."""
    wanted = query(state=state, name=name, since=since, tag=tag, cluster=cluster, count=count)
    return replace(wanted.look(), snapshots={})


@suggesting
def diff(first: Run | str, second: Run | str, cluster: str | None = None) -> Comparison:
    """The differences of two runs, given as runs or names: configuration, code, versions, image, results.

    Runs in any state can be compared; `line_differences()` of the result returns unified diffs of the code. Raises
    NotFoundError, UsageError if both are the same run, and ConfigError if a record cannot be read.
    """
    before, after = (as_run(run, cluster) for run in (first, second))
    if before == after:
        raise UsageError(f"both names refer to the same run: {before.id}", "list run IDs with: clusterctl status -a")
    from clusterctl.launcher.observe.comparison import compare

    return compare(before.directory, after.directory)


@dataclass(frozen=True)
class Query:
    """Runs to read once or repeatedly: those named, or the newest matching ones of a folder."""

    folder: Path
    named: tuple[RunDir, ...] = ()
    wanted: Filter = field(default_factory=Filter)
    count: int | None = None
    ended: EndedRuns = field(default_factory=EndedRuns, repr=False)  # these are read only once
    counted: bool = False  # rows are for totals of all runs, not only of the newest `count`

    def look(self) -> RunStatuses:
        """The current status. Neither a damaged run nor an unreachable Slurm hides the other runs."""
        if self.named:
            found = statuses_of(self.named, ended=self.ended)
        else:
            found = newest(self.folder, self.wanted, self.count, self.ended)
        self.ended.save()
        return found

    def rows(
        self,
        row_of: Callable[[Status, float], Row],
        together: Callable[[Iterable[Row]], Iterable[Row]] = iter,
    ) -> Listing:
        """Like `look`, but as table rows made by `row_of`, only once for ended runs.

        `count` refers to submissions, however many runs a sweep has; `together` makes one row per sweep.
        """
        if self.named:
            looked = self.look()
            rows = tuple(row_of(status, looked.as_of) for status in looked.statuses)
            return Listing(looked.as_of, rows, looked.problems, looked.statuses)
        found = listing(self.folder, self.wanted, self.count, row_of, self.ended, together, counted=self.counted)
        self.ended.save()
        return found

    def list(self) -> list[RunDir]:
        """Only the runs; their files are read only if a state or an age has to be known."""
        if self.named or self.wanted.needs_reading:
            return [status.record.run for status in self.look().statuses]
        return [*itertools.islice(newest_first(self.folder, self.wanted.takes_id), self.count)]


def query(
    names: Iterable[str] = (),
    *,
    state: str | Iterable[str] = (),
    name: str | Iterable[str] = (),
    since: str | float | None = None,
    tag: str | Iterable[str] = (),
    cluster: str | None = None,
    count: int | None = None,
    counted: bool = False,
) -> Query:
    """The runs called `names`, else those matching the filters of `runs`. Raises NotFoundError and UsageError."""
    named = tuple(run.directory for run in find_all(names, cluster))
    words, states = _several(state), set[State]()
    known = {one.value: frozenset({one}) for one in State} | STATE_GROUPS
    for word in ",".join(words).split(",") if words else ():
        if word not in known:
            close = nearest(word, known)
            raise UsageError(
                f"no such state: {word}", f"did you mean {close}?" if close else f"one of {', '.join(known)}"
            )
        states |= known[word]
    wanted = Filter(_several(name), frozenset(states), age_seconds("since", since), frozenset(_several(tag)))
    folder = chosen_runs_folder(cluster)
    many = len(named) > _MANY or (not named and (count is None or counted or wanted.needs_reading))
    if not many:
        return Query(folder, named, wanted, count)
    return Query(folder, named, wanted, count, ended_runs(folder), counted)


def overview(names: Iterable[str], cluster: str | None = None, count: int = 100) -> Overview:
    """The data of a monitor for the runs called `names`, else for the newest `count`."""
    from clusterctl.launcher.observe.overview import Overview

    return Overview(chosen_runs_folder(cluster), count, tuple(run.directory for run in find_all(names, cluster)))


def _several(words: str | Iterable[str]) -> tuple[str, ...]:
    return (words,) if isinstance(words, str) else tuple(words)


def age_seconds(argument: str, age: str | float | None) -> float | None:
    """The value of `argument` in seconds, given as "2d" or as a number. Raises UsageError."""
    if not isinstance(age, str):
        return age
    try:
        return float(parse_seconds(age))
    except ValueError as error:
        raise UsageError(f"`{argument}=` {age}: {error}", f'for example `{argument}="2d"`') from None
