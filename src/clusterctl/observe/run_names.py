"""The names of runs, read off a folder's names alone: `NAME-20260131-120000-1a2b`, and `.7` behind it in a sweep."""

from __future__ import annotations

import itertools
import os
import re

TYPE_CHECKING = False  # as in typing, whose import takes longer than all of this; a shell waits for it
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NEWEST = "@last"
_STAMP_LETTERS, _SUFFIX_LETTERS = 15, 5
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*-[0-9]{8}-[0-9]{6}-[0-9a-f]{4}(?:\.[0-9]{1,5})?")


def is_run_id(name: str) -> bool:
    return _ID.fullmatch(name) is not None


def job_name(run: str) -> str:
    """The name of the job in a run's id; all of what is no such id."""
    return submission(run)[: -_STAMP_LETTERS - _SUFFIX_LETTERS - 1] if is_run_id(run) else run


def submission(run: str) -> str:
    """The id without the place in a sweep: the sweep's id, or that of a run that is part of none."""
    sweep, _, place = run.rpartition(".")
    return sweep if place.isdigit() else run  # an id ends otherwise: `-1a2b`


def suffix(run: str) -> str:
    """The end of a run's id, time and letters: the runs of a job's stages have it in common."""
    return submission(run)[-_STAMP_LETTERS - _SUFFIX_LETTERS :]


def stamp(run: str) -> str:
    """The time in a run's id, by the clock of the place: `20260131-120000`."""
    return submission(run)[-_STAMP_LETTERS - _SUFFIX_LETTERS : -_SUFFIX_LETTERS]


def run_ids(folder: Path) -> list[str]:
    """The names in `folder` that are a run's, the newest one first."""
    try:
        names = [name for name in os.listdir(folder) if is_run_id(name)]  # noqa: PTH208 - there may be thousands
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(names, key=lambda name: (stamp(name), name), reverse=True)


def names_beginning(ids: Sequence[str], typed: str, most: int) -> list[str]:
    """What may be typed for one of the runs `ids` and begins with `typed`: `@last`, names of jobs, ids of the newest.

    The runs of a sweep are offered where its id is typed, and a dot.
    """
    submissions = dict.fromkeys(map(submission, ids))
    of_sweep = (run for run in reversed(ids) if run not in submissions and typed.startswith(f"{submission(run)}."))
    names = (*([NEWEST] if ids else []), *dict.fromkeys(map(job_name, ids)), *submissions, *of_sweep)
    return [*itertools.islice((name for name in names if name.startswith(typed)), most)]
