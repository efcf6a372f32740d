"""Snapshots of a run's code, one per content: edits after `submit` do not affect a queued or requeued run.

`RUNS/.code/<hash>/lib/clusterctl` is this package, `RUNS/.code/<hash>/project` the job's `code` folder. Equal content
has an equal path, which keeps numba's cache valid. Snapshots are read-only and share equal files: a changed line in a
large project copies one file.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import clusterctl
from clusterctl.launcher.config.shown import SILENT
from clusterctl.launcher.submission.code_files import (
    QUIET_SECONDS,
    KnownDigests,
    Project,
    copied_files,
    in_threads,
    open_file,
    package_files,
    project_files,
    stamp_of,
)
from clusterctl.shared.errors import ConfigError
from clusterctl.shared.record.files import exists, is_folder, local_devices
from clusterctl.shared.record.layout import KNOWN_DIGESTS, SHARED_FILES, code_folder
from clusterctl.shared.record.ownership import make_new, make_private, require_own
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from clusterctl.launcher.config.shown import ProgressListener
    from clusterctl.launcher.submission.code_files import CodeFile
    from clusterctl.shared.record.layout import RunDir

_LIBRARY, _PROJECT = PARTS = "lib/clusterctl", "project"
_WORTH_A_BAR, _MANY = 100 * 2**20, 5000  # bytes, files
_SMALL = 2**20  # bytes; smaller files are not worth a buffer and a file object
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class Code(NamedTuple):
    """The current files of a run's code, and the folder of their copy, which may not exist yet."""

    folder: Path
    library: list[CodeFile]
    project: list[CodeFile]
    digests: dict[str, str]  # name in the copy -> digest of the content
    origin: Path | None = None  # of the project
    known: tuple[KnownDigests, ...] = ()
    ignored: tuple[str, ...] = ()  # parts of the project's repository that lead out of it
    earlier: Path | None = None  # the snapshot of an earlier run, whose project this is

    @property
    def is_new(self) -> bool:
        return not self.folder.is_dir()

    @property
    def copied_project(self) -> Path:
        return (self.earlier or self.folder) / _PROJECT

    @property
    def is_sent(self) -> bool:
        """Whether it came from another machine, so that the snapshot is the only local copy."""
        return bool(self.project) and self.origin is None and not self.is_kept

    @property
    def is_kept(self) -> bool:
        """Whether the project is an earlier run's, whose source folder may have changed."""
        return self.earlier is not None


def find_code(runs: Path, project: Path | None, *, large: bool = False, progress: ProgressListener = SILENT) -> Code:
    """The current state of this package and `project`. Writes nothing.

    Raises ConfigError if the project is not a folder, LargeCode if it is suspiciously large, unless `large`.
    """
    library, digests, of_package = _todays_library(runs)
    known, (files, ignored) = [of_package], Project([], [])
    if project:
        files, ignored = project_files(project, runs, large=large)
        of_project = _known(runs, project)
        digests |= digests_of(_PROJECT, files, of_project, progress)
        known.append(of_project)
    return Code(_place(runs, digests), library, files, digests, project, tuple(known), tuple(ignored))


def find_code_of(runs: Path, files: list[CodeFile], digests: Mapping[str, str]) -> Code:
    """Like `find_code`, for a project on another machine: its `files`, and their digests by name."""
    library, of_library, known = _todays_library(runs)
    named = {f"{_PROJECT}/{name}": digest for name, digest in digests.items()} | of_library
    return Code(_place(runs, named), library, files, named, None, (known,))


def _todays_library(runs: Path) -> tuple[list[CodeFile], dict[str, str], KnownDigests]:
    """The files of this package, their digests by name in the copy, and the cache of these in `runs`."""
    package = Path(clusterctl.__file__).resolve().parent
    files, known = package_files(package), _known(runs, package)
    return files, digests_of(_LIBRARY, files, known, SILENT), known


def _place(runs: Path, digests: Mapping[str, str]) -> Path:
    total = hashlib.sha256("\0".join(sorted(map("\0".join, digests.items()))).encode(errors="surrogateescape"))
    return code_folder(runs) / total.hexdigest()[:20]


def kept_code(run: RunDir, *, project: bool) -> Code:
    """The code of `run` for another submission: its `project` if it has one, and the library of today.

    Writes nothing. Raises ConfigError if the run's snapshot was removed, or if another user could have changed it.
    """
    return kept_codes([(run, project)])[0]


def kept_codes(runs: Iterable[tuple[RunDir, bool]]) -> list[Code]:
    """`kept_code` of each run, with a look at each of their snapshots only once."""
    found: dict[tuple[Path, bool], Code] = {}
    codes = []
    for run, project in runs:
        key = folder, _ = run.snapshot, project
        for part in (folder, *([folder / _PROJECT] if project else ())):
            if not is_folder(part):
                raise _gone(part)
        for own in (run.path, run.pickles, folder):
            if exists(own):
                require_own(own, "submit the job again")
        if key not in found:
            found[key] = _with_todays_library(folder, project=project)
        codes.append(found[key])
    return codes


def _with_todays_library(snapshot: Path, *, project: bool) -> Code:
    """`snapshot` itself if it has the current library, which the script of the new submission expects."""
    runs = snapshot.parents[1]
    library, digests, known = _todays_library(runs)
    copy = snapshot / _LIBRARY
    copied = package_files(copy) if is_folder(copy) else []
    # Names and sizes are cheap, and differ for nearly every other version. Only if they are equal, all files are read:
    # a library that merely looks like today's would run with a script that it does not fit.
    if [(file.name, file.size) for file in copied] == [(file.name, file.size) for file in library]:
        read = in_threads(digest_of, copied, remote=copy.stat().st_dev not in local_devices())
        if digests == {f"{_LIBRARY}/{file.name}": digest for file, digest in zip(copied, read, strict=True)}:
            return Code(snapshot, [], [], {}, earlier=snapshot)
    files = copied_files(snapshot / _PROJECT) if project else []
    of_project = _known(runs, snapshot / _PROJECT)
    digests |= digests_of(_PROJECT, files, of_project, SILENT)
    return Code(_place(runs, digests), library, files, digests, known=(known, of_project), earlier=snapshot)


def link_code(run: RunDir, folder: Path) -> Callable[[], object]:
    """Make the snapshot `folder` the code of `run`, in one step; returns a function that takes it back."""
    if exists(run.code) and run.snapshot == folder:
        return lambda: None
    aside = run.path / f".code.{os.urandom(4).hex()}"
    aside.symlink_to(os.path.relpath(os.path.realpath(folder), os.path.realpath(run.path)))
    if is_folder(run.code) and not run.code.is_symlink():  # in a run that was copied without its links
        before, target = aside.with_name(f"{aside.name}.before"), None
        run.code.rename(before)
        aside.replace(run.code)
    else:
        before, target = None, run.code.readlink() if run.code.is_symlink() else None
        aside.replace(run.code)

    def back() -> None:
        if before:
            run.code.unlink()
            before.rename(run.code)
        elif target:
            aside.symlink_to(target)
            aside.replace(run.code)

    return back


def _gone(place: Path) -> ConfigError:
    return ConfigError(f"the run's code has been removed: {place}", "submit the job again")


def _known(runs: Path, folder: Path) -> KnownDigests:
    name = hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:16]
    return KnownDigests(code_folder(runs) / KNOWN_DIGESTS / f"{name}.kept")


def digests_of(place: str, files: list[CodeFile], known: KnownDigests, progress: ProgressListener) -> dict[str, str]:
    """The digests of `files` by their names in the copy; files without a cached digest are read."""
    found: dict[str, str] = {}
    unknown: list[CodeFile] = []
    for file in files:
        found[f"{place}/{file.name}"] = digest = known.of(file)
        if not digest:
            unknown.append(file)
    _announce("reading", unknown, progress)
    learned = in_threads(
        lambda file: known.learned(file, digest_of), unknown, remote=any(map(known.is_remote, unknown))
    )
    for file, digest in zip(unknown, learned, strict=True):
        found[f"{place}/{file.name}"] = digest
        progress.advance(file.size)
    return found


def _announce(what: str, files: list[CodeFile], progress: ProgressListener) -> None:
    """Report a step if there is so much that it takes noticeable time."""
    size = sum(file.size for file in files)
    if size > _WORTH_A_BAR or len(files) > _MANY:
        progress.begin(f"{what} the code: {plural(len(files), 'file')}", size)


def take_snapshot(code: Code, progress: ProgressListener = SILENT) -> Path:
    """The snapshot of `code`, made if its content is new. Concurrent calls are safe."""
    _require_own(make_private(code.folder.parent))
    _make(code, progress)
    for known in code.known:
        known.save()
    return code.folder


def _make(code: Code, progress: ProgressListener) -> None:
    final = code.folder
    with suppress(FileNotFoundError):  # removed concurrently
        if not code.is_new:
            _require_own(final)
            os.utime(final)  # recent copies are kept even if no run refers to them yet (api/clean.py)
            return
    if not code.library:  # of a snapshot that needed no copy
        raise _gone(final)
    shared = make_private(final.with_name(SHARED_FILES))
    _require_own(shared)
    aside = make_new(final.with_name(f".{final.name}.{os.urandom(4).hex()}"))
    _announce("copying", code.project, progress)
    try:
        _fill(aside / _LIBRARY, code.library, _LIBRARY, code.digests, shared, SILENT)
        folders = _fill(aside / _PROJECT, code.project, _PROJECT, code.digests, shared, progress)
        aside.rename(final)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        if not final.is_dir():  # otherwise a concurrent call has made the same one
            raise
        return
    for folder in folders:  # the package's own stay writable: Python stores bytecode there
        os.chmod(f"{final}/{_PROJECT}/{folder}", 0o555)  # noqa: PTH101 - there may be thousands


def _require_own(folder: Path) -> None:
    before, after = shlex.quote(str(folder)), shlex.quote(f"{folder}.old")
    require_own(folder, f"move it away, then submit again: mv {before} {after}")


def _fill(
    target: Path, files: list[CodeFile], place: str, digests: dict[str, str], shared: Path, progress: ProgressListener
) -> set[str]:
    """Put `files` into the new folder `target`; returns its subfolders."""
    target.mkdir(parents=True)
    folders = {""}
    for folder in {file.name.rpartition("/")[0] for file in files}:
        if folder not in folders:
            os.makedirs(f"{target}/{folder}", exist_ok=True)  # noqa: PTH103 - strings: there may be thousands
        while folder not in folders:  # and those above it: all of them become read-only
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    if through := folders & {file.name for file in files if file.link is not None}:
        raise ConfigError(f"code: both a link and a folder: {min(through)}", "submit again")

    def add(file: CodeFile) -> int:
        _add(file, f"{shared}/{digests[f'{place}/{file.name}']}", f"{target}/{file.name}")
        return file.size

    for size in in_threads(add, files, remote=target.stat().st_dev not in local_devices()):
        progress.advance(size)
    return folders


def _add(file: CodeFile, shared: str, target: str) -> None:
    """Hard-link `target` to `shared`; if there is no such file yet, copy `target` and share it."""
    if file.link is not None:
        os.symlink(file.link, target)  # noqa: PTH211
        return
    try:
        os.link(shared, target)
    except OSError:  # not there yet, no hard links on this file system, or too many of them
        if _copy(file, target) or shared.endswith(f"/{digest_of(file._replace(source=target))}"):
            with suppress(OSError):
                os.link(target, shared)


def _copy(file: CodeFile, target: str) -> bool:
    """Copy one file; returns whether it certainly still has the content whose digest was taken.

    Where supported (btrfs, XFS), both files share their blocks. Small files are copied through bare descriptors: file
    objects would add a third to the cost.
    """
    source = open_file(file)
    try:
        copy = os.open(target, _WRITE, 0o600)
        try:
            copied = 0
            with suppress(OSError):  # not supported here, or the disk is full, which the ordinary copy will report
                while copied < file.size and (count := os.copy_file_range(source, copy, 2**30)):
                    copied += count
            status = os.fstat(source)
            if copied < status.st_size:
                with open(source, "rb", closefd=False) as rest, open(copy, "wb", closefd=False) as target_file:
                    shutil.copyfileobj(rest, target_file)
            os.fchmod(copy, file.mode)
            os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(copy)
    finally:
        os.close(source)
    return stamp_of(status) == file.stamp and max(file.stamp[-2:]) / 1e9 < time.time() - QUIET_SECONDS


def digest_of(file: CodeFile) -> str:
    """The digest of a file's content and permissions, or of a link's target."""
    if file.link is not None:
        return f"link {file.link}"
    descriptor = open_file(file)
    try:
        if file.size < _SMALL:
            hashed = hashlib.sha256(os.read(descriptor, file.size))
        else:
            with open(descriptor, "rb", buffering=0, closefd=False) as source:
                hashed = hashlib.file_digest(source, "sha256")
    finally:
        os.close(descriptor)
    return f"{hashed.hexdigest()}-{file.mode:o}"
