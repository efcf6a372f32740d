"""The runs there are: one by name, or those that fit."""

from __future__ import annotations

import hashlib
import itertools
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from clusterctl.api.calls import works_elsewhere
from clusterctl.api.run import Run
from clusterctl.config import cache_folder, chosen_runs_folder
from clusterctl.errors import UsageError
from clusterctl.observe.ended_runs import EndedRuns
from clusterctl.observe.listing import Listing as Listing
from clusterctl.observe.listing import listing
from clusterctl.observe.run_names import run_ids
from clusterctl.observe.runs import find_run, newest_first
from clusterctl.observe.status import Filter, newest, report
from clusterctl.observe.status import run_columns as run_columns
from clusterctl.observe.status import to_json as to_json
from clusterctl.observe.sweeps import one_run, read_sweep, sweep_named
from clusterctl.runs.stages import ENDED
from clusterctl.runs.stages import Stage as Stage
from clusterctl.spec.records import nearest
from clusterctl.spec.values import parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from clusterctl.observe.ended_runs import Row
    from clusterctl.observe.overview import Overview
    from clusterctl.observe.stage import Status
    from clusterctl.observe.status import Report as Report
    from clusterctl.runs.layout import RunDir

_MANY = 50  # runs: more of them are worth a file of what is known of those that have ended
# Words for several stages at once.
_GROUPS = {
    "ended": ENDED,
    "alive": frozenset(Stage) - ENDED,
    "running": frozenset(Stage) - ENDED - {Stage.QUEUED},
}


@works_elsewhere()
def find(name: str, cluster: str | None = None) -> Run:
    """The run that `name` means: `@last`, an id, a job's name (its newest run), or the beginning of one id.

    Raises NotFoundError, with the nearest name, and UsageError where several ids begin with `name`.
    """
    folder = chosen_runs_folder(cluster)
    if sweep := sweep_named(folder, name):
        raise one_run(sweep)
    return Run(find_run(folder, name).path)


def as_run(run: Run | str, cluster: str | None = None) -> Run:
    """`run`, or the one of that name. Raises what `find` raises."""
    return find(run, cluster) if isinstance(run, str) else run


def find_all(names: Iterable[str], cluster: str | None = None) -> list[Run]:
    """The runs of these names, each once, and all runs of those that are sweeps. Raises what `find` raises."""
    folder = chosen_runs_folder(cluster)
    found: dict[Run, None] = {}
    for name in names:
        sweep = sweep_named(folder, name)
        runs = read_sweep(sweep).runs if sweep else (find_run(folder, name),)
        found |= {Run(run.path): None for run in runs}
    return list(found)


@works_elsewhere()
def runs(
    *,
    stage: str | Iterable[str] = (),
    name: str | Iterable[str] = (),
    since: str | float | None = None,
    cluster: str | None = None,
    count: int | None = None,
) -> list[Run]:
    """The runs of `cluster`, the newest first; runs that cannot be read are left out.

    Those in one of the stages `stage` ("failed"; "running", "alive" and "ended" mean several), whose job or id is like
    `name` ("cora*"), submitted within `since` ("2d", or seconds); `count` takes the newest of them.
    """
    wanted = query(stage=stage, name=name, since=since, cluster=cluster, count=count)
    return [Run(run.path) for run in wanted.list()]


@works_elsewhere()
def names(cluster: str | None = None) -> list[str]:
    """The ids of the runs of `cluster`, newest first, without reading their files."""
    return run_ids(chosen_runs_folder(cluster))


@works_elsewhere()
def look(
    *,
    stage: str | Iterable[str] = (),
    name: str | Iterable[str] = (),
    since: str | float | None = None,
    cluster: str | None = None,
    count: int | None = None,
) -> Report:
    """The status of the matching runs (arguments as for `runs`), without Slurm's information about other jobs."""
    return replace(query(stage=stage, name=name, since=since, cluster=cluster, count=count).look(), snapshots={})


@dataclass(frozen=True)
class Query:
    """Runs to look at, once or again and again: those that were named, or the newest of a folder that fit."""

    folder: Path
    named: tuple[RunDir, ...] = ()
    wanted: Filter = field(default_factory=Filter)
    count: int | None = None
    ended: EndedRuns = field(default_factory=EndedRuns, repr=False)  # those are read once

    def look(self) -> Report:
        """Their status now. Neither a damaged run nor an unreachable Slurm hides the others."""
        if self.named:
            found = report(self.named, ended=self.ended)
        else:
            found = newest(self.folder, self.wanted, self.count, self.ended)
        self.ended.save()
        return found

    def rows(
        self,
        row_of: Callable[[Status, float], Row],
        together: Callable[[Iterable[Row]], Iterable[Row]] = iter,
    ) -> Listing:
        """As `look`, as rows of a table that `row_of` makes: of a run that has ended, once for all.

        The newest submissions are meant, however many runs a sweep has; `together` makes one row of those.
        """
        if self.named:
            looked = self.look()
            rows = tuple(row_of(status, looked.as_of) for status in looked.statuses)
            return Listing(looked.as_of, rows, looked.problems, looked.statuses)
        found = listing(self.folder, self.wanted, self.count, row_of, self.ended, together)
        self.ended.save()
        return found

    def list(self) -> list[RunDir]:
        """The runs alone: read only where a stage or an age has to be known."""
        if self.named or self.wanted.needs_reading:
            return [status.record.run for status in self.look().statuses]
        return [*itertools.islice(newest_first(self.folder, self.wanted.takes_id), self.count)]


def query(
    names: Iterable[str] = (),
    *,
    stage: str | Iterable[str] = (),
    name: str | Iterable[str] = (),
    since: str | float | None = None,
    cluster: str | None = None,
    count: int | None = None,
) -> Query:
    """The runs called `names`, else those that fit, as for `runs`. Raises NotFoundError and UsageError."""
    named = tuple(run.directory for run in find_all(names, cluster))
    wanted = Filter(_several(name), _stages(_several(stage)), age_seconds("--since", since))
    folder = chosen_runs_folder(cluster)
    many = len(named) > _MANY or (not named and (count is None or wanted.needs_reading))
    return Query(folder, named, wanted, count, EndedRuns(_kept_runs(folder) if many else None))


def overview(names: Iterable[str], cluster: str | None = None, count: int = 100) -> Overview:
    """What a monitor shows of the runs called `names`, else of the newest `count`."""
    from clusterctl.observe.overview import Overview

    return Overview(chosen_runs_folder(cluster), count, tuple(run.directory for run in find_all(names, cluster)))


def _kept_runs(folder: Path) -> Path:
    """The file of what is known of ended runs: a user's own, as is what may be asked about them."""
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    return cache_folder() / "runs" / f"{name}.kept"


def _several(words: str | Iterable[str]) -> tuple[str, ...]:
    return (words,) if isinstance(words, str) else tuple(words)


def _stages(words: tuple[str, ...]) -> frozenset[Stage]:
    """The stages that are named, also several after commas."""
    stages: set[Stage] = set()
    known = {stage.value: frozenset({stage}) for stage in Stage} | _GROUPS
    for word in ",".join(words).split(",") if words else ():
        if word not in known:
            close = nearest(word, known)
            hint = f"did you mean {close}?" if close else f"one of {', '.join(known)}"
            raise UsageError(f"no such state: {word}", hint)
        stages |= known[word]
    return frozenset(stages)


def age_seconds(option: str, age: str | float | None) -> float | None:
    """The seconds that `option` was given, as "2d" or as a number. Raises UsageError."""
    if not isinstance(age, str):
        return age
    try:
        return float(parse_seconds(age))
    except ValueError as error:
        raise UsageError(f"{option} {age}: {error}", f"for example {option} 2d") from None
