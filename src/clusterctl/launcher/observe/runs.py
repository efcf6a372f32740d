"""Look up runs by what a user types: an id, a prefix of one, a job's name, `@last`; and by their Slurm jobs."""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING

from clusterctl.launcher.observe.run_names import NEWEST, is_run_id, job_name, run_ids, stamp, submission
from clusterctl.launcher.observe.run_record import array_of, read_submission, read_successor
from clusterctl.launcher.slurm.jobs import is_of, job_typed
from clusterctl.shared.errors import NotFoundError, UsageError
from clusterctl.shared.record.files import exists, with_retries
from clusterctl.shared.record.layout import RunDir
from clusterctl.shared.spec.records import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

_STAMP = "%Y%m%d-%H%M%S"
MOST_COUNTED = 1000  # runs that a view reads only to say how many of them match
_ZONES_SECONDS = 26 * 3600  # between the local times of two places


def newest_first(folder: Path, takes: Callable[[str], bool] = bool, since: float | None = None) -> Iterator[RunDir]:
    """The runs in `folder`, like `newest_ids`, without runs that are not written yet."""
    return _written(folder, newest_ids(folder, takes, since))


def newest_and_total(folder: Path, count: int) -> tuple[tuple[RunDir, ...], int]:
    """The newest `count` runs in `folder`, and how many there are, from one listing.

    The others are not looked at: runs that are not written yet, or private to another user, count among them.
    """
    ids = run_ids(folder)
    runs = tuple(itertools.islice(_written(folder, _in_order(folder, ids)), count))
    return runs, len(ids) if len(runs) == count else len(runs)


def _written(folder: Path, ids: Iterable[str]) -> Iterator[RunDir]:
    return (RunDir(folder / run) for run in ids if is_written(folder, run))


def newest_ids(folder: Path, takes: Callable[[str], bool] = bool, since: float | None = None) -> Iterator[str]:
    """The ids accepted by `takes`, newest first, including runs that are not written yet.

    `since`: only those submitted after it, as far as the id shows, which may be in another time zone.
    """
    ids: Iterable[str] = filter(takes, run_ids(folder))
    if since is not None:
        earliest = time.strftime(_STAMP, time.localtime(since - _ZONES_SECONDS))
        ids = itertools.takewhile(lambda run: stamp(run) >= earliest, ids)
    return _in_order(folder, ids)


def _in_order(folder: Path, ids: Iterable[str]) -> Iterator[str]:
    """The sorted `ids`, with those of the same second sorted by their time of writing."""
    for _, group in itertools.groupby(ids, key=stamp):
        same_second = [*group]
        if len(same_second) > 1:
            same_second.sort(key=lambda run: _modified(folder, run) or 0, reverse=True)
        yield from same_second


def newest_submissions(ids: Iterable[str], count: int | None) -> Iterator[str]:
    """The `ids` in the newest `count` submissions, newest first; a sweep counts as one."""
    seen: set[str] = set()
    for run in ids:
        seen.add(submission(run))
        if count is not None and len(seen) > count:
            return
        yield run


def is_written(folder: Path, run: str) -> bool:
    """Whether the run with that id has a record, readable or not; not for a private run of another user."""
    return _modified(folder, run) is not None or array_of(RunDir(folder / run)) is not None


def find_run(folder: Path, name: str) -> RunDir:
    """The run called `name`: `@last`, a run id, a job's name (its newest run), or a prefix of one id.

    Raises NotFoundError, with the closest name, and UsageError if several ids start with `name`.
    """
    if is_run_id(name) and (exists((named := RunDir(folder / name)).run_json) or is_private(named.path)):
        return named
    if meant := next(newest_first(folder, lambda run: name in (NEWEST, run, job_name(run))), None):
        return meant
    begun = list(newest_first(folder, lambda run: bool(name) and run.startswith(name)))
    if len(begun) > 1:
        raise UsageError(f"several runs start with: {name}", "one of " + ", ".join(run.id for run in begun[:5]))
    if not begun and (job := job_typed(name)):
        hint = f"for any Slurm job there are: clusterctl why {job}, and logs, status, cancel"
        raise NotFoundError(f"{job} is not a job of a run: clusterctl did not submit it", hint)
    if not begun:
        ids = run_ids(folder)
        close = nearest(name, dict.fromkeys([*map(job_name, ids), *ids]))
        hint = f"did you mean {close}?" if close else "see the runs with: clusterctl status"
        raise NotFoundError(f"no run named: {name}" if ids else f"no runs in: {folder}", hint)
    return begun[0]


def name_by_job(folder: Path, typed: str) -> str:
    """The id of the run, or for an array's number of the sweep, whose last Slurm job was `typed`; else `typed` itself.

    A run's own name has precedence. Every run's record may have to be read.
    """
    job = job_typed(typed)
    if job is None or any(typed in (run, job_name(run)) for run in run_ids(folder)):
        return typed
    runs = [*newest_first(folder)]
    known = itertools.chain(
        ((run.id, read_submission(run).job_id) for run in runs),
        ((run.id, job) for run in runs if (after := read_successor(run)) for job in after.jobs),
    )
    run, found = next(((run, found) for run, found in known if is_of(found, job)), (typed, job))
    return run if found == job else submission(run)


def _modified(folder: Path, run: str) -> int | None:
    """None if there is no such run, or a private one; 0 if stat fails otherwise, as its reader will report."""
    try:
        return with_retries(lambda: os.stat(f"{folder}/{run}/run.json").st_mtime_ns)  # noqa: PTH116 - ten thousand
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return None if is_private(folder / run) else 0


def is_private(run: Path) -> bool:
    """Whether the run belongs to another user, who lets nobody read it. Many users may share a runs folder."""
    try:
        return run.lstat().st_uid != os.geteuid() and not os.access(run, os.X_OK, effective_ids=True)
    except OSError:
        return False
