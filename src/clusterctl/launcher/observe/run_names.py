"""Run ids, from folder names alone: `NAME-20260131-120000-1a2b`, with a suffix such as `.7` in a sweep."""

from __future__ import annotations

import itertools
import os
import re

TYPE_CHECKING = False  # importing typing would take longer than all of this, which shell completion needs
if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NEWEST = "@last"
FAILED = "@failed"  # the newest one that ended neither well nor by request
_STAMP_LETTERS, _SUFFIX_LETTERS = 15, 5
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*-[0-9]{8}-[0-9]{6}-[0-9a-f]{4}(?:\.[0-9]{1,7})?")


def is_run_id(name: str) -> bool:
    return _ID.fullmatch(name) is not None


def job_name(run: str) -> str:
    """The job name in a run id; any other text unchanged."""
    return submission(run)[: -_STAMP_LETTERS - _SUFFIX_LETTERS - 1] if is_run_id(run) else run


def submission(run: str) -> str:
    """The id without the index in a sweep: the sweep's id, or the run's id if it is not in a sweep."""
    sweep, _, place = run.rpartition(".")
    return sweep if place.isdigit() else run  # an id ends in `-1a2b`


def suffix(run: str) -> str:
    """The end of a run id, with time and letters, which the runs of a job's stages share."""
    return submission(run)[-_STAMP_LETTERS - _SUFFIX_LETTERS :]


def stamp(run: str) -> str:
    """The time in a run id, by the local clock: `20260131-120000`."""
    return submission(run)[-_STAMP_LETTERS - _SUFFIX_LETTERS : -_SUFFIX_LETTERS]


def run_ids(folder: Path) -> list[str]:
    """The run ids in `folder`, newest first, with those of array elements that have no directory yet."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - there may be thousands
    except (FileNotFoundError, NotADirectoryError):
        return []
    ids = [name for name in names if is_run_id(name)]
    places = [f"{folder}/{name}" for name in names if name.startswith(".sweeps")]
    if waiting := [run for place in places for run in _waiting(place)]:
        ids = [*{*ids, *waiting}]
    return sorted(ids, key=lambda name: (stamp(name), name), reverse=True)


def _waiting(place: str) -> list[str]:
    """The elements of this user's arrays of batch scripts in `place` that have no directory yet."""
    try:
        arrays = os.listdir(f"{place}/.arrays")  # noqa: PTH208
        if not arrays or os.lstat(place).st_uid != os.geteuid():
            return []
    except OSError:  # almost always: nobody has submitted an array of a batch script
        return []
    from pathlib import Path  # late: shell completion seldom gets here

    from clusterctl.shared.record.files import read_whole
    from clusterctl.shared.record.plain_text import numbers_in

    found = []
    for sweep in filter(is_run_id, arrays):
        try:
            indices = numbers_in(read_whole(Path(f"{place}/.arrays/{sweep}")).decode())
            begun = {*os.listdir(f"{place}/{sweep}/0/begun")}  # noqa: PTH208
        except (OSError, ValueError):  # just removed
            continue
        found += [f"{sweep}.{index}" for index in indices if str(index) not in begun]
    return found


def names_beginning(ids: Sequence[str], typed: str, most: int) -> list[str]:
    """Completions of `typed` for the runs `ids`: `@last`, `@failed`, job names, and ids, newest first.

    The runs of a sweep are offered once its id and a dot are typed.
    """
    submissions = dict.fromkeys(map(submission, ids))
    of_sweep = (run for run in reversed(ids) if run not in submissions and typed.startswith(f"{submission(run)}."))
    names = (*([NEWEST, FAILED] if ids else []), *dict.fromkeys(map(job_name, ids)), *submissions, *of_sweep)
    return [*itertools.islice((name for name in names if name.startswith(typed)), most)]
