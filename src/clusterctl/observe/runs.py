"""From what a user types to a run: an id, the beginning of one, a job's name, `@last`."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from clusterctl.errors import NotFoundError, UsageError
from clusterctl.runs.layout import RunDir
from clusterctl.spec.records import nearest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NEWEST = "@last"
_ID = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)-(?P<stamp>[0-9]{8}-[0-9]{6})-[0-9a-f]{4}")


def newest_first(folder: Path) -> Iterator[RunDir]:
    """The runs in `folder`, the newest one first; what is no run is passed over, as is a run not yet written."""
    try:
        stamped = [(match["stamp"], path) for path in folder.iterdir() if (match := _ID.fullmatch(path.name))]
    except (FileNotFoundError, NotADirectoryError):
        return
    stamped.sort(reverse=True)
    for _, same_second in itertools.groupby(stamped, key=lambda item: item[0]):
        runs = [RunDir(path) for _, path in same_second]
        ages = {run: age for run in runs if (age := _modified(run.run_json)) is not None}
        yield from sorted(ages, key=lambda run: ages[run], reverse=True)


def find_run(folder: Path, name: str) -> RunDir:
    """The run that `name` means: `@last`, a run's id, a job's name (its newest run), or the beginning of one id.

    Raises NotFoundError, with the nearest name, and UsageError where several ids begin with `name`.
    """
    runs = list(newest_first(folder)) if name != NEWEST else list(itertools.islice(newest_first(folder), 1))
    if name == NEWEST and runs:
        return runs[0]
    meant = [run for run in runs if name == run.id] or [run for run in runs if name == job_name(run)]
    if meant:
        return meant[0]
    begun = [run for run in runs if name and run.id.startswith(name)]
    if len(begun) > 1:
        raise UsageError(f"several runs begin with: {name}", "one of " + ", ".join(run.id for run in begun[:5]))
    if not begun:
        known = dict.fromkeys([*map(job_name, runs), *(run.id for run in runs)])
        close = nearest(name, known)
        hint = f"did you mean {close}?" if close else "see the runs with: clusterctl status"
        raise NotFoundError(f"no run named: {name}" if runs else f"no runs in: {folder}", hint)
    return begun[0]


def job_name(run: RunDir) -> str:
    """The name of the job, by the run's id."""
    match = _ID.fullmatch(run.id)
    return match["name"] if match else run.id


def _modified(path: Path) -> int | None:
    """None where there is no such file; 0 of one that cannot be looked at, which its reader will say."""
    try:
        return path.stat().st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return 0
