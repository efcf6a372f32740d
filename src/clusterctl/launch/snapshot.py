"""The code of a run, copied once per content: what is edited after `submit` does not reach a queued or requeued run.

`RUNS/.code/<hash>/lib/clusterctl` is this package, `RUNS/.code/<hash>/project` the job's `code` folder. Keyed by
content: numba's cache is keyed by path. Nobody writes to a snapshot, so that all have in common the files that are the
same: a changed line in a large project copies one file.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
from contextlib import suppress
from pathlib import Path
from threading import get_native_id
from typing import TYPE_CHECKING, NamedTuple

import clusterctl
from clusterctl.launch.code_files import package_files, project_files
from clusterctl.runs.files import make_private
from clusterctl.runs.layout import SHARED_FILES, code_folder
from clusterctl.runs.ownership import require_own

if TYPE_CHECKING:
    from clusterctl.launch.code_files import CodeFile

_LIBRARY, _PROJECT = "lib/clusterctl", "project"
_SMALL = 2**20  # bytes: not worth a buffer and a file object
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # what was a file may be a link or a pipe by now


class Code(NamedTuple):
    """The files of a run's code as they are now, and the folder where their copy is or will be."""

    folder: Path
    library: list[CodeFile]
    project: list[CodeFile]
    digests: dict[str, str]  # of their contents, by their names in the copy
    origin: Path | None = None  # of the project

    @property
    def is_new(self) -> bool:
        return not self.folder.is_dir()


def find_code(runs: Path, project: Path | None) -> Code:
    """This package and `project`, as they are now. Nothing is written.

    Raises ConfigError if the project is no folder, or holds more than 500 MiB or 20,000 files.
    """
    library = package_files(Path(clusterctl.__file__).resolve().parent)
    files = project_files(project, runs) if project else []
    digests = {f"{_LIBRARY}/{file.name}": _digest(file) for file in library}
    digests |= {f"{_PROJECT}/{file.name}": _digest(file) for file in files}
    total = hashlib.sha256("\0".join(sorted(map("\0".join, digests.items()))).encode(errors="surrogateescape"))
    return Code(code_folder(runs) / total.hexdigest()[:20], library, files, digests, project)


def take_snapshot(code: Code) -> Path:
    """The snapshot of `code`, made if its content is new. Safe against concurrent calls."""
    final = code.folder
    with suppress(FileNotFoundError):  # removed at this moment
        if not code.is_new:
            _require_own(final)
            os.utime(final)  # what is young is not removed, though no run refers to it yet (unused_code.py)
            return final
    shared = make_private(final.with_name(SHARED_FILES))
    _require_own(shared)
    aside = make_private(final.with_name(f".{final.name}.{get_native_id()}"))
    try:
        for place, files in ((_LIBRARY, code.library), (_PROJECT, code.project)):
            (aside / place).mkdir(parents=True)
            for file in files:
                _add(file, shared / code.digests[f"{place}/{file.name}"], aside / place / file.name)
        aside.rename(final)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        if not final.is_dir():  # else someone made the same one in the meantime
            raise
    for parent, _, _ in os.walk(final / _PROJECT):  # into those of this package Python writes what it compiled
        Path(parent).chmod(0o555)
    return final


def _require_own(folder: Path) -> None:
    before, after = shlex.quote(str(folder)), shlex.quote(f"{folder}.old")
    require_own(folder, f"move it away, then submit again: mv {before} {after}")


def _add(file: CodeFile, shared: Path, target: Path) -> None:
    """Make `target` a further name of `shared`; where there is no such file yet, `target` becomes it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if file.link is not None:
        target.symlink_to(file.link)
        return
    with suppress(OSError):  # none yet, a file system without such links, or too many of them
        os.link(shared, target)
        return
    _copy(file, target)
    target.chmod(file.mode)
    if _digest(file._replace(source=os.fspath(target))) == shared.name:  # it was not edited in the meantime
        with suppress(OSError):
            os.link(target, shared)


def _copy(file: CodeFile, target: Path) -> None:
    """Copy one file. File systems that can (btrfs, XFS) let both files share their blocks."""
    with os.fdopen(os.open(file.source, _READ), "rb", buffering=0) as source, target.open("wb") as copy:
        with suppress(OSError):  # a kernel or file system that cannot, or a full disk, which the next line finds
            while os.copy_file_range(source.fileno(), copy.fileno(), 2**30):
                pass
        shutil.copyfileobj(source, copy)
    shutil.copystat(file.source, target)


def _digest(file: CodeFile) -> str:
    """What tells the content of a file and who may read and execute it; or what a link says."""
    if file.link is not None:
        return f"link {file.link}"
    descriptor = os.open(file.source, _READ)
    try:
        if file.size < _SMALL:
            hashed = hashlib.sha256(os.read(descriptor, file.size))
        else:
            with open(descriptor, "rb", buffering=0, closefd=False) as source:
                hashed = hashlib.file_digest(source, "sha256")
    finally:
        os.close(descriptor)
    return f"{hashed.hexdigest()}-{file.mode:o}"
