"""From what a user types to a run: an id, the beginning of one, a job's name, `@last`."""

from __future__ import annotations

import itertools
import os
import re
import time
from typing import TYPE_CHECKING

from clusterctl.errors import NotFoundError, UsageError
from clusterctl.runs.files import exists
from clusterctl.runs.layout import RunDir
from clusterctl.spec.records import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

NEWEST = "@last"
_STAMP, _STAMP_LETTERS, _SUFFIX_LETTERS = "%Y%m%d-%H%M%S", 15, 5
_ZONES_SECONDS = 26 * 3600  # between the clocks of two places
# `NAME-20260131-120000-1a2b`, and `.7` behind it for a run of a sweep.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*-[0-9]{8}-[0-9]{6}-[0-9a-f]{4}(?:\.[0-9]{1,5})?")


def newest_first(folder: Path, takes: Callable[[str], bool] = bool, *, unwritten: bool = False) -> Iterator[RunDir]:
    """The runs in `folder` whose ids `takes` takes, the newest one first.

    A run not yet written is passed over. With `unwritten` it may be among them, for a caller that knows most runs.
    """
    for _, group in itertools.groupby(filter(takes, _ids(folder)), key=_stamp):
        same_second = [*group]
        if len(same_second) > 1 or not unwritten:
            ages = {name: age for name in same_second if (age := _modified(f"{folder}/{name}/run.json")) is not None}
            same_second = sorted(ages, key=ages.__getitem__, reverse=True)
        yield from (RunDir(folder / name) for name in same_second)


def newest_submissions(runs: Iterable[RunDir], count: int | None) -> Iterator[RunDir]:
    """Those of `runs`, the newest first, in the newest `count` submissions: a sweep is one, whatever its size."""
    seen: set[str] = set()
    for run in runs:
        seen.add(submission(run.id))
        if count is not None and len(seen) > count:
            return
        yield run


def named_since(moment: float) -> Callable[[RunDir], bool]:
    """Whether a run was submitted after `moment`, as far as its id can tell: some other place's clock wrote it."""
    earliest = time.strftime(_STAMP, time.localtime(moment - _ZONES_SECONDS))
    return lambda run: _stamp(run.id) >= earliest


def find_run(folder: Path, name: str) -> RunDir:
    """The run that `name` means: `@last`, a run's id, a job's name (its newest run), or the beginning of one id.

    Raises NotFoundError, with the nearest name, and UsageError where several ids begin with `name`.
    """
    if _ID.fullmatch(name) and exists((named := RunDir(folder / name)).run_json):
        return named
    if meant := next(newest_first(folder, lambda run: name in (NEWEST, run, job_name(run))), None):
        return meant
    begun = list(newest_first(folder, lambda run: bool(name) and run.startswith(name)))
    if len(begun) > 1:
        raise UsageError(f"several runs begin with: {name}", "one of " + ", ".join(run.id for run in begun[:5]))
    if not begun:
        ids = _ids(folder)
        close = nearest(name, dict.fromkeys([*map(job_name, ids), *ids]))
        hint = f"did you mean {close}?" if close else "see the runs with: clusterctl status"
        raise NotFoundError(f"no run named: {name}" if ids else f"no runs in: {folder}", hint)
    return begun[0]


def names_beginning(folder: Path, typed: str, most: int) -> list[str]:
    """What may be typed for a run and begins with `typed`: `@last`, names of jobs, ids of the newest runs."""
    ids = _ids(folder)
    names = (*([NEWEST] if ids else []), *dict.fromkeys(map(job_name, ids)), *ids)
    return [*itertools.islice((name for name in names if name.startswith(typed)), most)]


def job_name(run: str) -> str:
    """The name of the job in a run's id; all of what is no such id."""
    return submission(run)[: -_STAMP_LETTERS - _SUFFIX_LETTERS - 1] if _ID.fullmatch(run) else run


def submission(run: str) -> str:
    """The id without the place in a sweep: the sweep's id, or that of a run that is part of none."""
    sweep, _, place = run.rpartition(".")
    return sweep if place.isdigit() else run  # an id ends otherwise: `-1a2b`


def is_run_id(name: str) -> bool:
    return _ID.fullmatch(name) is not None


def _ids(folder: Path) -> list[str]:
    """The names in `folder` that are a run's, the newest one first."""
    try:
        names = [name for name in os.listdir(folder) if _ID.fullmatch(name)]  # noqa: PTH208 - there may be thousands
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(names, key=lambda name: (_stamp(name), name), reverse=True)


def _stamp(run: str) -> str:
    """The time in a run's id, by the clock of the place: `20260131-120000`."""
    return submission(run)[-_STAMP_LETTERS - _SUFFIX_LETTERS : -_SUFFIX_LETTERS]


def _modified(path: str) -> int | None:
    """None where there is no such file; 0 of one that cannot be looked at, which its reader will say."""
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - ten thousand in a row
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return 0
