"""Which files and links of a code folder are copied.

A project consists of the files that git tracks or would track, or of all files without git. Links are not followed:
links inside the project are kept as they are, and links out of it are made absolute without copying their targets.
Git's list may come from anyone: each parent of a file must be a real folder inside the project.
"""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from clusterctl.launcher.submission.git import leads_outside, listed_files
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.record.files import local_devices
from clusterctl.shared.record.ownership import read_cache, write_cache
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path


LARGEST_BYTES = 500 * 2**20
MOST_FILES = 20_000
_COUNTED = 10  # stop counting at this multiple of the limit
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # the file may have become a link or a pipe
_FOLDER = os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_LEFT_OUT = {"__pycache__", "node_modules", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache"}


class CodeFile(NamedTuple):
    """A regular file, or a link with its target; `name` is its path below the folder."""

    name: str
    source: str
    size: int = 0
    mode: int = 0o444  # without write permission
    link: str | None = None
    stamp: tuple[int, ...] = ()  # of a file: its identity, and when it was last changed

    @property
    def leads_out(self) -> bool:
        return self.link is not None and self.link.startswith("/")


class Project(NamedTuple):
    """The files of a project, and one line for each part of its repository that was ignored."""

    files: list[CodeFile]
    ignored: list[str]


def package_files(package: Path) -> list[CodeFile]:
    """The files of this package, without the jobs and data sets shipped with it."""
    return [file for file in _walk(str(package), "") if not file.name.startswith("shipped/")]


def copied_files(project: Path) -> list[CodeFile]:
    """Everything in the copy of a project, which has only files that were to be copied."""
    root = str(project)
    paths = (f"{parent}/{name}" for parent, folders, names in os.walk(root) for name in (*folders, *names))
    found = (_code_file(root, path[len(root) + 1 :], os.lstat(path)) for path in paths)  # None for a folder
    return sorted(file for file in found if file)


class LargeCode(ConfigError):
    """A project so large that copying it needs confirmation."""


def project_files(project: Path, runs: Path, *, large: bool = False) -> Project:
    """The files of a project, without the runs folder.

    Raises ConfigError if it is not a folder, and LargeCode if it is too large, unless `large` allows that.
    """
    if not project.is_dir():
        raise ConfigError(f"code: no such folder: {project}", "set `code` to the folder of your program")
    own_runs = f"{os.path.relpath(runs, project)}/"
    names, ignored = listed_files(project)
    files: list[CodeFile] = []
    seen: set[str] = set()
    size = 0
    for file in _named(str(project), names, ignored) if names else _walk(str(project), ""):
        if file.name.startswith(own_runs) or file.name in seen:  # a submodule's files may be listed, too
            continue
        seen.add(file.name)
        files.append(file)
        size += file.size
        if not large and (size > _COUNTED * LARGEST_BYTES or len(files) > _COUNTED * MOST_FILES):
            raise _too_large(project, files, size, "more than ")  # a home folder, say: do not count all of it
    if not large and (size > LARGEST_BYTES or len(files) > MOST_FILES):
        raise _too_large(project, files, size)
    return Project(files, ignored)


def _too_large(project: Path, files: list[CodeFile], size: int, more_than: str = "") -> LargeCode:
    holds = f"{more_than}{plural(len(files), 'file')}, {size / 2**20:,.0f} MiB"
    message = f"code: {project} contains {holds}; the largest: {largest(files)}"
    hint = "exclude data with .gitignore, or set `code` to the folder that contains only the program"
    return LargeCode(message, f"{hint}; to copy everything: `large_code=True`")


def largest(files: Iterable[CodeFile]) -> str:
    """The three largest top-level files and folders of a project, as in "data/ (1,200 files, 300 MiB)"."""
    sizes, counts = Counter[str](), Counter[str]()
    for file in files:
        first, slash, _ = file.name.partition("/")
        sizes[first + slash] += file.size
        counts[first + slash] += 1
    cost = {name: sizes[name] + 4096 * counts[name] for name in counts}  # many small files take time too
    shown = [
        f"{name} ({plural(counts[name], 'file') + ', ' if name.endswith('/') else ''}{sizes[name] / 2**20:,.0f} MiB)"
        for name in sorted(cost, key=cost.__getitem__, reverse=True)[:3]
    ]
    return ", ".join(shown)


def _named(folder: str, names: Iterable[str], ignored: list[str]) -> Iterator[CodeFile]:
    """The files with these names; lines about names that lead out of `folder` are added to `ignored`."""
    with closing(_Folders(folder)) as folders:
        opened: str | None = None  # the folder of the last name: there may be thousands in one
        for name in names:
            name = name.removesuffix("/")  # of a repository in this one
            parent, _, last = name.rpartition("/")
            if leads_outside(last if parent and parent == opened else name):
                ignored.append(f"a name in git's index that leads out of the project: {name}")
                continue
            try:
                if parent != opened:
                    opened, descriptor = None, folders.opened(parent)
                    opened = parent
                status = os.lstat(last, dir_fd=descriptor)
            except OSError:  # tracked, but deleted
                parts = name.split("/")
                if any(os.path.islink(f"{folder}/{'/'.join(parts[:count])}") for count in range(1, len(parts))):  # noqa: PTH114
                    ignored.append(f"a name in git's index below a link: {name}")
                continue
            if stat.S_ISDIR(status.st_mode):  # a submodule
                yield from _walk(folder, f"{name}/", descriptor)
            elif file := _code_file(folder, name, status):
                yield file


class _Folders:
    """Opens folders below one folder step by step, without following links. Sorted names open each folder once."""

    def __init__(self, folder: str) -> None:
        self._open = [("", os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))]

    def opened(self, path: str) -> int:
        """A descriptor of `path`, valid until the next call. Raises NotADirectoryError if a part of it is a link."""
        while (last := self._open[-1])[0] and path != last[0] and not path.startswith(f"{last[0]}/"):
            os.close(self._open.pop()[1])
        known, descriptor = self._open[-1]
        for part in path[len(known) :].split("/"):
            if part:
                descriptor = os.open(part, os.O_PATH | _FOLDER, dir_fd=descriptor)
                known = f"{known}/{part}" if known else part
                self._open.append((known, descriptor))
        return descriptor

    def close(self) -> None:
        for _, descriptor in self._open:
            os.close(descriptor)


def _walk(folder: str, below: str, parent: int | None = None) -> Iterator[CodeFile]:
    """Everything in `folder` below `below` (empty, or a path that ends with a slash), by name.

    The last part of `below` is opened in the folder `parent`, a descriptor, and must not be a link.
    """
    if parent is None:
        descriptor = os.open(f"{folder}/{below}", os.O_RDONLY | os.O_CLOEXEC)
    else:
        descriptor = os.open(below.split("/")[-2], os.O_RDONLY | _FOLDER, dir_fd=parent)
    try:  # stat relative to an open folder takes two thirds of the time of full paths
        with os.scandir(descriptor) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        if below and any(entry.name == "pyvenv.cfg" for entry in entries):  # a virtual environment
            return
        for entry in entries:
            name = below + entry.name
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _LEFT_OUT:
                    yield from _walk(folder, f"{name}/", descriptor)
            elif not name.endswith(".pyc") and (file := _code_file(folder, name, entry.stat(follow_symlinks=False))):
                yield file
    finally:
        os.close(descriptor)


def open_file(file: CodeFile) -> int:
    """Open a listed file for reading: the one that was listed, or its replacement in the same folder.

    Raises OSError if the file or one of its parents has become a link.
    """
    descriptor = os.open(file.source, _READ)
    if not file.stamp or stamp_of(os.fstat(descriptor))[:2] == file.stamp[:2]:
        return descriptor
    os.close(descriptor)
    with closing(_Folders(file.source.removesuffix(f"/{file.name}"))) as folders:
        folder, _, name = file.name.rpartition("/")
        return os.open(name, _READ, dir_fd=folders.opened(folder))


def stamp_of(status: os.stat_result) -> tuple[int, ...]:
    """Values that change with a file's content: its device, inode number, size, and modification times."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _code_file(folder: str, name: str, status: os.stat_result) -> CodeFile | None:
    """None for anything but a file or link: a pipe, a socket, a device."""
    path = f"{folder}/{name}"
    if stat.S_ISREG(status.st_mode):
        return CodeFile(name, path, status.st_size, status.st_mode & 0o555, stamp=stamp_of(status))
    if not stat.S_ISLNK(status.st_mode):
        return None
    # In a copy of the folder, a link that stays inside is relative, any other absolute.
    parent = os.path.dirname(path)  # noqa: PTH120 - strings: there may be thousands
    target = os.path.normpath(os.path.join(parent, os.readlink(path)))  # noqa: PTH115, PTH118
    for root in (folder, os.path.realpath(folder)):
        if target == root or target.startswith(f"{root}/"):
            target = os.path.relpath(folder + target[len(root) :], parent)
            break
    return CodeFile(name, path, link=target)


# Process many files, several at a time if they are on another machine.


_THREADS = 8
_IN_A_ROW = 64  # items per thread and turn

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(work: Callable[[Item], Result], items: Sequence[Item], *, remote: bool) -> Iterator[Result]:
    """Yield `work(item)` in order. After an error no new item is started, and all running ones have ended."""
    if not remote or len(items) <= _IN_A_ROW:
        yield from map(work, items)
        return
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(_THREADS)
    try:
        rows = (items[start : start + _IN_A_ROW] for start in range(0, len(items), _IN_A_ROW))
        for results in pool.map(lambda row: [*map(work, row)], rows):
            yield from results
    finally:
        pool.shutdown(cancel_futures=True)


# Cached digests of a project's files: a file that has not changed since it was read is not read again.


QUIET_SECONDS = 2.0  # two changes within one tick of the file system's clock have the same timestamp
_FORM = 2


@dataclass
class KnownDigests:
    """The digests of the files below one folder, cached in `file` by earlier submissions."""

    file: Path
    _known: dict[str, str] = field(init=False)  # by a file's attributes as text, since there may be 50,000
    _seen: dict[str, str] = field(default_factory=dict, init=False)
    _local: frozenset[int] = field(init=False)  # devices
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        kept = read_cache(self.file, _FORM)
        self._known = dict(line.split("\t", 1)[::-1] for line in kept.lines) if kept else {}
        self._local, self._began = local_devices(), time.time()

    def of(self, file: CodeFile) -> str:
        """The cached digest of `file`; empty if `learned` has to compute it."""
        if not file.stamp or self.is_remote(file):
            return ""
        look = _look(file)
        if digest := self._known.get(look, ""):
            self._seen[look] = digest  # only these are saved: digests of files that are gone would pile up
        return digest

    def learned(self, file: CodeFile, read: Callable[[CodeFile], str]) -> str:
        """The digest of `file`, computed by `read` unless a second, closer look finds it cached. Thread-safe."""
        if not file.stamp:
            return read(file)
        if self.is_remote(file):
            # NFS answers a stat from its cache, but asks the server when a file is opened.
            descriptor = open_file(file)
            try:
                status = os.fstat(descriptor)
            finally:
                os.close(descriptor)
            file = file._replace(size=status.st_size, mode=status.st_mode & 0o555, stamp=stamp_of(status))
        look = _look(file)
        digest = self._known.get(look) or read(file)
        if max(file.stamp[-2:]) / 1e9 < self._began - QUIET_SECONDS and "\n" not in look:
            self._seen[look] = digest
        return digest

    def is_remote(self, file: CodeFile) -> bool:
        """Whether it is on a remote file system; False for links, which the walk itself has read."""
        return bool(file.stamp) and file.stamp[0] not in self._local

    def save(self) -> None:
        """Save the digests for the next submission."""
        if self._seen != self._known:
            write_cache(self.file, _FORM, None, (f"{digest}\t{look}" for look, digest in self._seen.items()))
            self._known = self._seen


def _look(file: CodeFile) -> str:
    device, number, size, modified, changed = file.stamp
    return f"{device} {number} {size} {modified} {changed} {file.name}"
