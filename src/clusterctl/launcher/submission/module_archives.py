"""Archives of the modules that ranks import: `resources.local_code` copies them to each node's local disk.

    RUNS/.code/<hash>/lib.tar, project.tar      of a code snapshot, beside it
    RUNS/.code/.environments/<hash>.tar         of a Python environment, keyed by its modules' names, sizes and times
    RUNS/<run>/environments/0.tar               a link to the latter

A node reads one file sequentially instead of thousands. An archive holds the source and bytecode of Python modules; of
native modules it holds only the names, since the dynamic linker loads them and their libraries from where they are
installed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.launcher.config.shown import SILENT
from clusterctl.shared.errors import ConfigError, reason
from clusterctl.shared.node.staging import is_installed
from clusterctl.shared.record.files import exists, open_regular, replacing
from clusterctl.shared.record.layout import ENVIRONMENTS, code_folder
from clusterctl.shared.record.ownership import make_private

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from clusterctl.launcher.config.shown import ProgressListener
    from clusterctl.launcher.submission.plan import Plan
    from clusterctl.shared.record.layout import RunDir

_NATIVE = ".so"
_MARKS = ("pyvenv.cfg", "conda-meta")  # of a venv or a conda environment


class ArchivedFile(NamedTuple):
    """A file in an archive. Without `source` it is an empty file, or a folder if its name ends with "/"."""

    name: str
    source: str | None = None
    size: int = 0
    time: int = 0


def archive_modules(plan: Plan, code: Path, progress: ProgressListener = SILENT) -> dict[Path, Path]:
    """Make the missing archives that the nodes of `plan` will read; returns links to create -> their targets.

    An environment not named in the cluster file may be the system's, which exists on every node: it is not archived.
    Raises ConfigError if an archive cannot be made.
    """
    if plan.staging is None:
        return {}
    try:
        for part in ("lib", "project"):
            if not exists(archive := code / f"{part}.tar"):
                archive_folder(archive, code / part)
        folder = make_private(code_folder(plan.run.path.parent) / ENVIRONMENTS)
        return {
            plan.run.environment(number): _archived(environment, folder, progress)
            for number, environment in enumerate(plan.staging.environments)
            if plan.staging.named or any(exists(Path(environment, mark)) for mark in _MARKS)
        }
    except OSError as error:
        message = f"cannot archive the modules for the nodes: {reason(error)}"
        raise ConfigError(
            message, "is the disk full? to run without these copies: `resources.local_code = false`"
        ) from error


def archive_folder(archive: Path, folder: Path) -> None:
    """Make the archive of all modules below `folder`."""
    _write(archive, list(_modules(str(folder), "")), SILENT)


def link_archives(run: RunDir, links: Mapping[Path, Path]) -> None:
    """Make `run` refer to exactly these archives."""
    if exists(run.environments):
        shutil.rmtree(run.environments)
    for link, archive in links.items():
        make_private(run.environments)
        link.symlink_to(os.path.relpath(archive, run.environments))


def standard_libraries(environment: Path) -> list[Path]:
    """The module folders of an environment: usually one."""
    return sorted(environment.glob("lib/python3*"))


def _archived(environment: str, archives: Path, progress: ProgressListener) -> Path:
    """The archive of the current state of `environment`, made if there is none."""
    entries = [ArchivedFile("lib/")]
    for folder in standard_libraries(Path(environment)):
        below = f"lib/{folder.name}/"
        entries += [ArchivedFile(below), *_modules(environment, below, installed=True)]
    stamp = hashlib.sha256(repr([(entry.name, entry.size, entry.time) for entry in entries]).encode())
    archive = archives / f"{stamp.hexdigest()[:20]}.tar"
    if exists(archive):
        os.utime(archive)  # recent archives are kept even if no run refers to them yet (api/clean.py)
    else:
        size = sum(entry.size for entry in entries)
        progress.begin(f"archiving the modules of {environment}: {len(entries)} files", size)
        _write(archive, entries, progress)
    return archive


def _modules(root: str, below: str, *, installed: bool = False) -> Iterator[ArchivedFile]:
    """The modules below the folder `below` (empty, or ending with "/") of `root`, folders before their entries.

    Links to folders, and tests of `installed` packages, are left out: they are imported from their original place.
    """
    with os.scandir(f"{root}/{below}") as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    for entry in entries:
        name = below + entry.name
        if installed and is_installed(name):
            yield ArchivedFile(name)
        elif entry.is_dir(follow_symlinks=False):
            if not (installed and entry.name == "tests"):
                found = _modules(root, f"{name}/", installed=installed)
                if first := next(found, None):  # a folder of data, without any module, is left out
                    yield ArchivedFile(f"{name}/")
                    yield first
                    yield from found
        elif name.endswith(_NATIVE):
            yield ArchivedFile(name)
        elif name.endswith(".py") or (name.endswith(".pyc") and below.endswith("__pycache__/")):
            try:
                status = entry.stat()
            except OSError:  # a dangling link
                continue
            yield ArchivedFile(name, entry.path, status.st_size, int(status.st_mtime))


def _write(archive: Path, entries: list[ArchivedFile], progress: ProgressListener) -> None:
    import tarfile  # most submissions do not need it

    with replacing(archive) as file, tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as members:
        for name, source, size, modified in entries:
            member = tarfile.TarInfo(name.rstrip("/"))
            member.mtime = modified
            if source is None:
                member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
                members.addfile(member)
                continue
            with open_regular(Path(source)) as content:
                member.size = os.fstat(content.fileno()).st_size
                members.addfile(member, content)
            progress.advance(size)
