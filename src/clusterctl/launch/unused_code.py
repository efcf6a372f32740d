"""Finds copies of code and archives of environments that no run uses any more, because its directory was deleted.

Safe during submissions: a submission that reuses an old copy (`take_snapshot`) updates its timestamp first. Recent
copies are kept, and a copy is checked again after it has been moved out of reach of new submissions.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from errno import EINVAL, ENOENT, ENOTDIR
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.errors import ConfigError
from clusterctl.runs.file_systems import clock_ahead
from clusterctl.runs.layout import ENVIRONMENTS, SHARED_FILES, RunDir, code_folder
from clusterctl.runs.removal import remove_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

YOUNG_SECONDS = 3600.0  # far longer than a submission takes from choosing a copy to linking it
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
    used = set(_used(runs, without))
    copies = [path for path in sorted(code.iterdir()) if _COPY.fullmatch(path.name) and path.name not in used]
    copies = [path for path in copies if not path.is_symlink() and path.is_dir() and not _is_young(path, now)]
    shared = {status.st_ino: path for path, status in _files(code / SHARED_FILES)}
    links = Counter(status.st_ino for copy in copies for _, status in _files(copy))
    freed: set[int] = set()
    found = [Unused(copy, _freed(copy, links, shared, freed)) for copy in copies]
    alone = (item for item in _files(code / SHARED_FILES) if item[1].st_nlink == 1)
    archives = (
        item for item in _files(code / ENVIRONMENTS) if item[0].name not in used and not _is_young(item[0], now)
    )
    return [*found, *(Unused(path, status.st_blocks * 512) for path, status in (*alone, *archives))]


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


def _used(runs: Path, without: Collection[str]) -> Iterator[str]:
    """The names of the copies that this user's runs in the folder refer to, whatever their state.

    Runs of other users never use these copies.
    """
    for run in (path for path in runs.iterdir() if path.name not in without):
        try:
            if run.lstat().st_uid != os.geteuid():
                continue
            yield Path(os.readlink(run / "code")).name  # noqa: PTH115 - a dangling link counts too
            yield from (Path(os.readlink(link)).name for link in RunDir(run).environments.iterdir())  # noqa: PTH115
        except OSError as error:
            if error.errno in (ENOENT, ENOTDIR, EINVAL):  # not a run, or one with its own code
                continue
            hint = "no copies of code are removed, since it may refer to them"
            raise ConfigError(f"cannot read {run}: {error.strerror}", hint) from error


def _is_young(path: Path, now: float) -> bool:
    return path.stat().st_mtime > now - YOUNG_SECONDS


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with suppress(FileNotFoundError):
                if stat.S_ISREG((status := path.lstat()).st_mode):
                    yield path, status


def _freed(copy: Path, links: Counter[int], shared: dict[int, Path], freed: set[int]) -> int:
    """The bytes of files that only unused copies contain, counted once."""
    size = 0
    for _, status in _files(copy):
        number = status.st_ino
        if number not in freed and status.st_nlink == links[number] + (number in shared):
            freed.add(number)
            size += status.st_blocks * 512
    return size
