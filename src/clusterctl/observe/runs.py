"""From what a user types to a run: an id, the beginning of one, a job's name, `@last`."""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING

from clusterctl.errors import NotFoundError, UsageError
from clusterctl.observe.run_names import NEWEST, is_run_id, job_name, run_ids, stamp, submission
from clusterctl.runs.files import exists
from clusterctl.runs.layout import RunDir
from clusterctl.spec.records import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

_STAMP = "%Y%m%d-%H%M%S"
_ZONES_SECONDS = 26 * 3600  # between the clocks of two places


def newest_first(folder: Path, takes: Callable[[str], bool] = bool, *, unwritten: bool = False) -> Iterator[RunDir]:
    """The runs in `folder` whose ids `takes` takes, the newest one first.

    A run not yet written is passed over. With `unwritten` it may be among them, for a caller that knows most runs.
    """
    for _, group in itertools.groupby(filter(takes, run_ids(folder)), key=stamp):
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
    return lambda run: stamp(run.id) >= earliest


def find_run(folder: Path, name: str) -> RunDir:
    """The run that `name` means: `@last`, a run's id, a job's name (its newest run), or the beginning of one id.

    Raises NotFoundError, with the nearest name, and UsageError where several ids begin with `name`.
    """
    if is_run_id(name) and exists((named := RunDir(folder / name)).run_json):
        return named
    if meant := next(newest_first(folder, lambda run: name in (NEWEST, run, job_name(run))), None):
        return meant
    begun = list(newest_first(folder, lambda run: bool(name) and run.startswith(name)))
    if len(begun) > 1:
        raise UsageError(f"several runs begin with: {name}", "one of " + ", ".join(run.id for run in begun[:5]))
    if not begun:
        ids = run_ids(folder)
        close = nearest(name, dict.fromkeys([*map(job_name, ids), *ids]))
        hint = f"did you mean {close}?" if close else "see the runs with: clusterctl status"
        raise NotFoundError(f"no run named: {name}" if ids else f"no runs in: {folder}", hint)
    return begun[0]


def _modified(path: str) -> int | None:
    """None where there is no such file; 0 of one that cannot be looked at, which its reader will say."""
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - ten thousand in a row
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return 0
