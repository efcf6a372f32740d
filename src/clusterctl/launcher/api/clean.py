"""The disk usage of the runs folder and of this user's images and caches, and removal of unneeded data.

A run is removed only if its files or Slurm show that it has ended, and if it has not changed since they were read. It
is renamed first, so that nobody sees a partly removed run.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from errno import EINVAL, ENOENT, ENOTDIR
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.launcher.api.find import age_seconds, query
from clusterctl.launcher.api.remote.operations import suggesting
from clusterctl.launcher.config import cache_folder, chosen_images_folder, chosen_runs_folder, cluster_of_jobs
from clusterctl.launcher.config.environment import environments_folder
from clusterctl.launcher.config.shown import Shown
from clusterctl.launcher.containers.unpacked import own_folders
from clusterctl.launcher.observe.ended_runs import stamp
from clusterctl.launcher.observe.run_names import is_run_id, submission
from clusterctl.launcher.observe.runs import is_private
from clusterctl.launcher.observe.state import ARRIVAL_SECONDS
from clusterctl.launcher.observe.sweeps import ranked
from clusterctl.launcher.submission.environments import USERS
from clusterctl.shared.errors import ClusterctlError, ConfigError, UsageError, reason
from clusterctl.shared.record import checkpoints
from clusterctl.shared.record.files import clock_ahead, names_in, remove_tree, with_retries
from clusterctl.shared.record.layout import BUILT, ENVIRONMENTS, SHARED_FILES, RunDir, code_folder, own_place

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from clusterctl.launcher.observe.ended_runs import Stamp
    from clusterctl.launcher.observe.state import Status
    from clusterctl.launcher.observe.sweeps import Ranked


_HALF_REMOVED = re.compile(r"\.(?P<run>.+)\.removed\.[0-9]+")


class DiskKind(StrEnum):
    """The kinds of data on the disk."""

    RUNS = "runs"  # without their checkpoints
    CHECKPOINTS = "checkpoints"
    CODE = "code"  # copies, and archives of environments
    ENVIRONMENTS = "environments"  # built from lock files
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
class CleanUp(Shown):
    """The disk usage, the removable data, and the old runs to keep. Nothing is removed before `carry_out`."""

    folder: Path
    as_of: float
    taken: tuple[Taken, ...]
    removals: tuple[Removal, ...]
    staying: tuple[Staying, ...] = ()
    problems: tuple[ClusterctlError, ...] = ()
    environments: tuple[Path, ...] = ()  # folders of them

    def carry_out(self) -> CleanUp:
        """Remove the removable data unless it is in use again. Returns what was removed and what was not."""
        removed: list[Removal] = []
        problems: list[ClusterctlError] = []
        unused: dict[Path, Unused] | None = None
        shared = (DiskKind.CODE, DiskKind.ENVIRONMENTS)
        for one in sorted(self.removals, key=lambda one: one.kind in shared):
            try:
                if one.kind not in shared:
                    gone = _remove(one)
                else:  # the runs that refer to it have been removed by now
                    if unused is None:
                        found = [*find_unused(self.folder), *unused_environments(self.environments)]
                        unused = {each.path: each for each in found}
                    gone = one.path in unused and remove_unused(unused[one.path])
                removed += [one] if gone else []
            except FileNotFoundError:  # another process is removing it too
                continue
            except OSError as error:
                problems.append(ConfigError(f"cannot remove all of {one.path}: {reason(error)}"))
        return replace(self, removals=tuple(removed), problems=tuple(problems))


@suggesting
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
    seconds = age_seconds("older_than", older_than)
    if seconds is None and (keep_best or checkpoints_only):
        option = "`keep_best=`" if keep_best else "`checkpoints_only=`"
        raise UsageError(f"{option} needs `older_than=`", 'for example `older_than="30d"`; 0d: all ended runs')
    folder, disk = chosen_runs_folder(cluster), DiskUse()
    runs = [path for path in _folders(folder) if is_run_id(path.name) and not is_private(path)]
    sizes = {path.name: _sizes(path, disk) for path in runs}
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
            kind, path, freed = DiskKind.RUNS, run.path, sum(sizes.get(run.id, {}).values())
            if checkpoints_only:
                kind, path = DiskKind.CHECKPOINTS, run.checkpoints
                freed = sizes.get(run.id, {}).get(path.name, 0)
            one = Removal(kind, path, freed, ended_at(status), stamps.get(run, ()))
            if why or one.path.is_symlink():
                staying.append(Staying(run.id, why or f"{one.path.name} is a link"))
            elif one.bytes or not checkpoints_only:
                removals.append(one)
    try:
        gone = {one.path.name for one in removals if one.kind is DiskKind.RUNS}
        removals += [Removal(DiskKind.CODE, one.path, one.size) for one in find_unused(folder, without=gone)]
    except ConfigError as error:  # another user's run in a shared folder
        problems.append(error)
    environments = _environment_folders(folder, cluster)
    try:
        unused = unused_environments(environments, without={folder / name for name in gone})
        removals += [Removal(DiskKind.ENVIRONMENTS, one.path, one.size) for one in unused]
    except ConfigError as error:
        problems.append(error)
    taken = tuple(_taken(folder, cluster, sizes, disk))
    problems += [ConfigError(f"cannot read {path}: its size is not counted") for path in disk.unread]
    return CleanUp(folder, time.time(), taken, tuple(removals), tuple(staying), tuple(problems), environments)


def _environment_folders(runs: Path, cluster: str | None) -> tuple[Path, ...]:
    """The folders of this user's environments: that of the cluster, and that in the folder of runs."""
    places = [own_place(runs, BUILT)]
    with suppress(ClusterctlError):
        places.append(environments_folder(cluster_of_jobs(cluster)))
    return tuple(place for place in dict.fromkeys(places) if place.is_dir())


def _folders(folder: Path) -> list[Path]:
    """The folders in `folder`, without links to folders."""
    try:
        return [path for path in sorted(folder.iterdir()) if path.is_dir() and not path.is_symlink()]
    except FileNotFoundError:
        return []


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


def _taken(folder: Path, cluster: str | None, sizes: Mapping[str, Mapping[str, int]], disk: DiskUse) -> Iterator[Taken]:
    whole = sum(sum(size.values()) for size in sizes.values())
    saved = [size["checkpoints"] for size in sizes.values() if size.get("checkpoints")]
    yield Taken(DiskKind.RUNS, folder, len(sizes), whole - sum(saved))
    if saved:
        yield Taken(DiskKind.CHECKPOINTS, folder, len(saved), sum(saved))
    others = [(DiskKind.CODE, code_folder(folder)), (DiskKind.DATA, RunDir(folder / "any").data_cache)]
    others += [(DiskKind.ENVIRONMENTS, path) for path in _environment_folders(folder, cluster)]
    others += [(DiskKind.IMAGES, chosen_images_folder(cluster)), (DiskKind.CACHES, cache_folder())]
    others += [(DiskKind.UNPACKED, path) for path in own_folders()]
    for kind, path in others:
        if path.is_dir():
            names = [name for name in names_in(path) if not name.startswith(".")]
            yield Taken(kind, path, len(names), disk.bytes_of(path))


def _remove(one: Removal) -> bool:
    """Remove a run or its checkpoints unless it has changed since; if it changes meanwhile, it is renamed back."""
    if one.kind is DiskKind.CHECKPOINTS:
        run = RunDir(one.path.parent)
        return stamp(run) == one.seen and checkpoints.remove_all(run)
    if not is_run_id(one.path.name):  # partly removed before
        remove_tree(one.path)
        return True
    run = RunDir(one.path)
    if stamp(run) != one.seen:
        return False
    aside = RunDir(run.path.with_name(f".{run.id}.removed.{time.time_ns()}"))
    run.path.rename(aside.path)
    if _moments(stamp(aside)) != _moments(one.seen):
        aside.path.rename(run.path)
        return False
    remove_tree(aside.path)
    return True


def _moments(seen: Stamp) -> list[int]:
    """A stamp without the times that a rename changes."""
    return [number for place, number in enumerate(seen) if place % 3 != 2]


# Finds copies of code and archives of environments that no run uses any more, because its directory was deleted.


YOUNG_SECONDS = 3600.0  # far longer than a submission takes from choosing a copy to linking it
_ENVIRONMENT = re.compile(r"[0-9a-f]{20}|\.+[0-9a-f]{20}\..+")  # the latter as below
_COPY = re.compile(r"[0-9a-f]{20}|\.[0-9a-f]{20}\..+")  # the latter are partly created or partly removed


@dataclass(frozen=True)
class Unused:
    """An unused copy, archive or shared file. `size` is the disk space that its removal frees, in bytes."""

    path: Path
    size: int


def find_unused(runs: Path, clock: Callable[[], float] = time.time, without: Collection[str] = ()) -> list[Unused]:
    """The copies of code in the folder `runs` that can be removed, or could be `without` these runs.

    Raises ConfigError if a folder cannot be read: it may be a run.
    """
    code = code_folder(runs)
    if not code.is_dir():
        return []
    now = clock() + (clock_ahead(code) or 0.0)
    used = set()  # by this user's runs in any state; runs of other users never use these copies
    arrays = (path.parents[1] / path.name / "0" for path in runs.glob(".sweeps*/.arrays/*"))  # of elements to come
    for run in (*(path for path in runs.iterdir() if path.name not in without), *arrays):
        try:
            if run.lstat().st_uid != os.geteuid():
                continue
            used.add(Path(os.readlink(run / "code")).name)  # noqa: PTH115 - a dangling link counts too
            used.update(Path(os.readlink(link)).name for link in RunDir(run).environments.iterdir())  # noqa: PTH115
        except OSError as error:
            if error.errno in (ENOENT, ENOTDIR, EINVAL):  # not a run, or one with its own code
                continue
            hint = "no copies of code are removed, since it may refer to them"
            raise ConfigError(f"cannot read {run}: {error.strerror}", hint) from error
    copies = [path for path in sorted(code.iterdir()) if _COPY.fullmatch(path.name) and path.name not in used]
    copies = [path for path in copies if not path.is_symlink() and path.is_dir() and not _is_young(path, now)]
    shared = {status.st_ino: path for path, status in _files(code / SHARED_FILES)}
    links = Counter(status.st_ino for copy in copies for _, status in _files(copy))
    freed: set[int] = set()  # files that only unused copies contain count once
    found = []
    for copy in copies:
        size = 0
        for _, status in _files(copy):
            number = status.st_ino
            if number not in freed and status.st_nlink == links[number] + (number in shared):
                freed.add(number)
                size += status.st_blocks * 512
        found.append(Unused(copy, size))
    alone = (item for item in _files(code / SHARED_FILES) if item[1].st_nlink == 1)
    archives = (
        item for item in _files(code / ENVIRONMENTS) if item[0].name not in used and not _is_young(item[0], now)
    )
    return [*found, *(Unused(path, status.st_blocks * 512) for path, status in (*alone, *archives))]


def unused_environments(
    folders: Iterable[Path], clock: Callable[[], float] = time.time, without: Collection[Path] = ()
) -> list[Unused]:
    """The environments that can be removed, or could be `without` these runs; also what killed builders left.

    Several folders of runs may share a folder of environments, which has links to all of them. Raises ConfigError if
    one cannot be read: its runs may use any environment.
    """
    found = []
    for folder in folders:
        now, used = clock() + (clock_ahead(folder) or 0.0), set[str]()  # their names, however the folder was reached
        for link in folder.glob(f"{USERS}/*"):
            runs = Path(os.readlink(link))  # noqa: PTH115 - a dangling link, too
            try:
                for name in names_in(runs):
                    with suppress(FileNotFoundError, NotADirectoryError):
                        if (run := runs / name) not in without and run.lstat().st_uid == os.geteuid():
                            used.add(Path(os.readlink(RunDir(run).venv)).name)  # noqa: PTH115
            except FileNotFoundError:  # the runs were removed as a whole
                continue
            except OSError as error:
                hint = "no environments are removed, since it may refer to them"
                raise ConfigError(f"cannot read {runs}: {error.strerror}", hint) from error
        names = (path for path in _folders(folder) if _ENVIRONMENT.fullmatch(path.name) and path.name not in used)
        gone = (path for path in names if not _is_young(path, now))
        found += [Unused(path, sum(status.st_blocks * 512 for _, status in _files(path))) for path in gone]
    return found


def remove_unused(unused: Unused, clock: Callable[[], float] = time.time) -> bool:
    """Remove one result of `find_unused` and the files only it has; False if it is in use again."""
    path = unused.path
    if path.parent.name == SHARED_FILES:
        path.unlink(missing_ok=True)  # a copy that has linked it keeps its content
        return True
    aside = path.with_name(f".{path.name.strip('.').partition('.')[0]}.removed.{time.time_ns()}")
    try:
        path.rename(aside)
    except FileNotFoundError:  # already removed
        return False
    if _is_young(aside, clock() + (clock_ahead(aside.parent) or 0.0)):
        with suppress(OSError):  # created again meanwhile
            aside.rename(path)
            return False
    if path.parent.name == ENVIRONMENTS:
        aside.unlink()
        return True
    contents = {status.st_ino for _, status in _files(aside)}
    remove_tree(aside)
    for shared, status in _files(path.parent / SHARED_FILES):
        if status.st_ino in contents and status.st_nlink == 1:
            shared.unlink(missing_ok=True)
    return True


def _is_young(path: Path, now: float) -> bool:
    return path.stat().st_mtime > now - YOUNG_SECONDS


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with suppress(FileNotFoundError):
                if stat.S_ISREG((status := path.lstat()).st_mode):
                    yield path, status


# Disk usage of folders: a file with several hard links counts once, and no symbolic link is followed.


@dataclass
class DiskUse:
    """Counts folders in turn: a file shared with an earlier folder is counted there."""

    unread: list[str] = field(default_factory=list)  # folders that could not be read
    _seen: set[tuple[int, int]] = field(default_factory=set)

    def bytes_of(self, path: Path) -> int:
        """The bytes on disk of a file, or of all files below a folder, not counted before."""
        return self._bytes(os.fspath(path))

    def _bytes(self, path: str) -> int:
        try:
            status = with_retries(lambda: os.lstat(path))
            if stat.S_ISDIR(status.st_mode):
                return sum([self._bytes(f"{path}/{name}") for name in names_in(path)])
        except FileNotFoundError:  # removed in the meantime
            return 0
        except OSError:
            self.unread.append(path)
            return 0
        if status.st_nlink > 1:
            if (number := (status.st_dev, status.st_ino)) in self._seen:
                return 0
            self._seen.add(number)
        return status.st_blocks * 512


# Which ended runs may be removed, and why others are kept; pure functions.


class Judged(NamedTuple):
    """An old run, and the reason to keep it; without a reason it may be removed."""

    status: Status
    stays: str = ""


def judged(statuses: Sequence[Status], seconds: float, now: float, *, keep_best: bool = False) -> list[Judged]:
    """A verdict on every run that ended, or may have ended, `seconds` ago; active runs are left out.

    `statuses` are those of all runs in the folder: dependencies of runs that have not ended are kept, and with
    `keep_best` also the best ended run of each job.
    """
    needed = {
        one.run: status.record.run.id
        for status in statuses
        if not _is_over(status, now)
        for one in status.record.predecessors
    }
    best = {found.status.record.run: found for found in best_runs(statuses)} if keep_best else {}
    verdicts = []
    for status in statuses:
        if now - ended_at(status) < seconds or (status.sure and not _is_over(status, now)):
            continue
        run, stays = status.record.run, ""
        if not status.record.is_ours:
            stays = "belongs to another user"
        elif not status.sure:
            stays = "Slurm does not report whether it has ended"
        elif waits := needed.get(run.id) or needed.get(submission(run.id)):
            stays = f"{waits} is waiting for it"
        elif one := best.get(run):
            stays = f"the best of {status.record.job.name}: {one.metric.label} {one.metric.text(one.value)}"
        verdicts.append(Judged(status, stays))
    return verdicts


def ended_at(status: Status) -> float:
    """When the run ended or, if unknown, its last start or its submission."""
    last = status.attempt
    return status.ended or (last and (last.end or last.start)) or status.record.submitted


def best_runs(statuses: Iterable[Status]) -> list[Ranked]:
    """The best ended run of each job, by the newest values, as shown in `status`; of equal runs, the newer one."""
    jobs: dict[str, list[Status]] = defaultdict(list)
    for status in statuses:
        if status.state.ended:
            jobs[status.record.job.name].append(status)
    return [first for found in jobs.values() for first in ranked(found)[:1]]


def _is_over(status: Status, now: float) -> bool:
    """Whether nothing writes to the run any more: a batch script may end a moment after its ranks."""
    last = status.attempt
    written = last is None or last.exit_code is not None or now - ended_at(status) >= ARRIVAL_SECONDS
    return status.state.ended and status.sure and written
