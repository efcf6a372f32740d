"""The disk usage of the runs folder and of this user's images and caches, and removal of unneeded data.

A run is removed only if its files or Slurm show that it has ended, and if it has not changed since they were read. It
is renamed first, so that nobody sees a partly removed run.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.api.find import age_seconds, query
from clusterctl.config import cache_folder, chosen_images_folder, chosen_runs_folder
from clusterctl.containers.unpacked import own_folders
from clusterctl.errors import ClusterctlError, ConfigError, UsageError, reason
from clusterctl.launch.unused_code import find_unused, remove_unused
from clusterctl.observe.disk import DiskUse
from clusterctl.observe.ended_runs import stamp
from clusterctl.observe.expendable import ended_at, judged
from clusterctl.observe.run_names import is_run_id
from clusterctl.observe.runs import is_private
from clusterctl.runs import checkpoints
from clusterctl.runs.files import names_in
from clusterctl.runs.layout import RunDir, code_folder
from clusterctl.runs.removal import remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from clusterctl.launch.unused_code import Unused
    from clusterctl.observe.ended_runs import Stamp
    from clusterctl.observe.stage import Status

SCHEMA_VERSION = 1
_HALF_REMOVED = re.compile(r"\.(?P<run>.+)\.removed\.[0-9]+")


class DiskKind(StrEnum):
    """The kinds of data on the disk."""

    RUNS = "runs"  # without their checkpoints
    CHECKPOINTS = "checkpoints"
    CODE = "code"  # copies, and archives of environments
    DATA = "data"
    IMAGES = "images"
    UNPACKED = "unpacked images"  # on this machine
    CACHES = "caches"


@dataclass(frozen=True)
class Taken:
    """The disk usage of one kind of data in a folder."""

    kind: DiskKind
    path: Path
    count: int
    bytes: int


class Removal(NamedTuple):
    """Removable data, the space that removing it frees, and since when it has not been needed, if known."""

    kind: DiskKind
    path: Path
    bytes: int
    since: float | None = None
    seen: Stamp = ()  # of a run, before its status was read


class Staying(NamedTuple):
    """An old run that is kept, and why."""

    run: str
    why: str


@dataclass(frozen=True)
class CleanUp:
    """The disk usage, the removable data, and the old runs to keep. Nothing is removed before `carry_out`."""

    folder: Path
    as_of: float
    taken: tuple[Taken, ...]
    removals: tuple[Removal, ...]
    staying: tuple[Staying, ...] = ()
    problems: tuple[ClusterctlError, ...] = ()

    def carry_out(self) -> CleanUp:
        """Remove the removable data unless it is in use again. Returns what was removed and what was not."""
        removed: list[Removal] = []
        problems: list[ClusterctlError] = []
        unused: dict[Path, Unused] | None = None
        for one in sorted(self.removals, key=lambda one: one.kind is DiskKind.CODE):
            try:
                if one.kind is not DiskKind.CODE:
                    gone = _remove(one)
                else:  # the runs that refer to it have been removed by now
                    unused = unused or {found.path: found for found in find_unused(self.folder)}
                    gone = one.path in unused and remove_unused(unused[one.path])
                removed += [one] if gone else []
            except FileNotFoundError:  # another process is removing it too
                continue
            except OSError as error:
                problems.append(ConfigError(f"cannot remove all of {one.path}: {reason(error)}"))
        return replace(self, removals=tuple(removed), problems=tuple(problems))


def clean(
    cluster: str | None = None,
    *,
    older_than: str | float | None = None,
    keep_best: bool = False,
    checkpoints_only: bool = False,
) -> CleanUp:
    """The disk usage of the runs folder of `cluster`, and what can be removed from it.

    Code copies that no run refers to are removable; with `older_than` ("30d", or seconds) also runs that ended that
    long ago, or only their checkpoints. `keep_best` keeps the best run of each job. Raises UsageError.
    """
    seconds = age_seconds("--older-than", older_than)
    if seconds is None and (keep_best or checkpoints_only):
        option = "--keep-best" if keep_best else "--checkpoints-only"
        raise UsageError(f"{option} needs --older-than", "for example --older-than 30d; 0d: all ended runs")
    folder, disk = chosen_runs_folder(cluster), DiskUse()
    sizes = {path.name: _sizes(path, disk) for path in _folders(folder) if _is_run(path)}
    removals = _half_removed(folder, disk)
    staying: list[Staying] = []
    problems: list[ClusterctlError] = []
    if seconds is not None:
        wanted = query(cluster=cluster)
        wanted.look()  # may record Slurm's accounting in a run
        stamps = {run: stamp(run) for run in wanted.list()}  # taken before the status is read
        found = wanted.look()
        problems += found.problems
        for status, why in judged(found.statuses, seconds, found.as_of, keep_best=keep_best):
            run = status.record.run
            one = _removal(status, sizes.get(run.id, {}), stamps.get(run, ()), checkpoints_only=checkpoints_only)
            if why or one.path.is_symlink():
                staying.append(Staying(run.id, why or f"{one.path.name} is a link"))
            elif one.bytes or not checkpoints_only:
                removals.append(one)
    try:
        gone = {one.path.name for one in removals if one.kind is DiskKind.RUNS}
        removals += [Removal(DiskKind.CODE, one.path, one.size) for one in find_unused(folder, without=gone)]
    except ConfigError as error:  # another user's run in a shared folder
        problems.append(error)
    taken = tuple(_taken(folder, cluster, sizes, disk))
    problems += [ConfigError(f"cannot read {path}: its size is not counted") for path in disk.unread]
    return CleanUp(folder, time.time(), taken, tuple(removals), tuple(staying), tuple(problems))


def to_json(found: CleanUp, *, removed: bool) -> dict[str, Any]:
    """The output of `clean -o json`, described by `schemas/clean.json`. `removed`: the data has been removed."""
    return {
        "schema_version": SCHEMA_VERSION,
        "as_of": found.as_of,
        "taken": [{**vars(one), "path": os.fspath(one.path)} for one in found.taken],
        "removed": removed,
        "removals": [
            {"kind": one.kind, "path": os.fspath(one.path), "bytes": one.bytes, "since": one.since}
            for one in found.removals
        ],
        "staying": [one._asdict() for one in found.staying],
    }


def _folders(folder: Path) -> list[Path]:
    """The folders in `folder`, without links to folders."""
    try:
        return [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.is_symlink()]
    except FileNotFoundError:
        return []


def _is_run(path: Path) -> bool:
    return is_run_id(path.name) and not is_private(path)


def _sizes(run: Path, disk: DiskUse) -> dict[str, int]:
    """Name -> disk usage, for everything in a run directory."""
    try:
        return {name: disk.bytes_of(run / name) for name in names_in(run)}
    except OSError:
        return {run.name: disk.bytes_of(run)}  # which also records it as unread


def _half_removed(folder: Path, disk: DiskUse) -> list[Removal]:
    """This user's runs whose removal was interrupted."""
    names = ((path, _HALF_REMOVED.fullmatch(path.name)) for path in _folders(folder))
    found = [path for path, match in names if match and is_run_id(match["run"])]
    return [Removal(DiskKind.RUNS, path, disk.bytes_of(path)) for path in found if path.stat().st_uid == os.geteuid()]


def _removal(status: Status, sizes: Mapping[str, int], seen: Stamp, *, checkpoints_only: bool) -> Removal:
    run = status.record.run
    if checkpoints_only:
        freed = sizes.get(run.checkpoints.name, 0)
        return Removal(DiskKind.CHECKPOINTS, run.checkpoints, freed, ended_at(status), seen)
    return Removal(DiskKind.RUNS, run.path, sum(sizes.values()), ended_at(status), seen)


def _taken(folder: Path, cluster: str | None, sizes: Mapping[str, Mapping[str, int]], disk: DiskUse) -> Iterator[Taken]:
    whole = sum(sum(size.values()) for size in sizes.values())
    saved = [size["checkpoints"] for size in sizes.values() if size.get("checkpoints")]
    yield Taken(DiskKind.RUNS, folder, len(sizes), whole - sum(saved))
    if saved:
        yield Taken(DiskKind.CHECKPOINTS, folder, len(saved), sum(saved))
    others = [(DiskKind.CODE, code_folder(folder)), (DiskKind.DATA, RunDir(folder / "any").data_cache)]
    others += [(DiskKind.IMAGES, chosen_images_folder(cluster)), (DiskKind.CACHES, cache_folder())]
    others += [(DiskKind.UNPACKED, path) for path in own_folders()]
    for kind, path in others:
        if path.is_dir():
            names = [name for name in names_in(path) if not name.startswith(".")]
            yield Taken(kind, path, len(names), disk.bytes_of(path))


def _remove(one: Removal) -> bool:
    if one.kind is DiskKind.CHECKPOINTS:
        run = RunDir(one.path.parent)
        return stamp(run) == one.seen and checkpoints.remove_all(run)
    if is_run_id(one.path.name):
        return _remove_run(RunDir(one.path), one.seen)
    remove_tree(one.path)  # partly removed before
    return True


def _remove_run(run: RunDir, seen: Stamp) -> bool:
    """Remove a run unless it has changed since; if it changes during the rename, it is renamed back."""
    if stamp(run) != seen:
        return False
    aside = RunDir(run.path.with_name(f".{run.id}.removed.{time.time_ns()}"))
    run.path.rename(aside.path)
    if _moments(stamp(aside)) != _moments(seen):
        aside.path.rename(run.path)
        return False
    remove_tree(aside.path)
    return True


def _moments(seen: Stamp) -> list[int]:
    """A stamp without the times that a rename changes."""
    return [number for place, number in enumerate(seen) if place % 3 != 2]
