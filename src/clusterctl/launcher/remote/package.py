"""clusterctl and its dependencies, all pure Python, as one archive for another machine.

The archive is made on first use and cached. Its name contains the digest of its content, so that different versions,
including modified ones, can coexist.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import json
import os
import re
import sys
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import clusterctl
from clusterctl.launcher.config import cache_folder, shipped_folder
from clusterctl.shared.errors import HostError
from clusterctl.shared.record.files import write_json
from clusterctl.shared.record.interpreter import adding
from clusterctl.shared.record.ownership import make_private

if TYPE_CHECKING:
    from collections.abc import Iterator

_NEEDED, _WELCOME = ("click", "submitit", "rich", "textual", "platformdirs"), ("waitress",)
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_SHIPPED = ("jobs", "cluster", "data", "containers")
_LEFT_OUT = {"__pycache__"}


class Package(NamedTuple):
    """The archive at `path`; `name` is the folder it is unpacked to."""

    name: str
    path: Path


def package() -> Package:
    """The archive of the running clusterctl. Raises HostError if a dependency cannot be included."""
    kept = make_private(cache_folder() / "remote")
    # This digest changes when the package or its environment does.
    seen = hashlib.sha256(sys.version.encode())
    for name, path in _own_files():
        status = path.stat()
        seen.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    for folder in sys.path:
        if folder.endswith(("site-packages", "dist-packages")) and os.path.isdir(folder):  # noqa: PTH112
            seen.update(f"{folder}\0{os.stat(folder).st_mtime_ns}\n".encode())  # noqa: PTH116
    stamp = seen.hexdigest()
    note = kept / "package.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(note.read_text())
        found = Package(known["name"], kept / known["file"])
        if known["stamp"] == stamp and found.path.is_file():
            return found
    made = _make(kept)
    write_json(note, {"stamp": stamp, "name": made.name, "file": made.path.name})
    for old in kept.glob("*.tar.gz"):
        if old != made.path:
            old.unlink(missing_ok=True)
    return made


def _make(folder: Path) -> Package:
    files = {**dict(_own_files()), **dict(_dependencies())}
    content = hashlib.sha256()
    descriptor, aside = tempfile.mkstemp(dir=folder)
    try:
        with (
            os.fdopen(descriptor, "wb") as file,
            gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name in sorted(files):
                data = files[name].read_bytes()
                member = tarfile.TarInfo(f"lib/{name}")
                member.size, member.mode = len(data), 0o644
                with files[name].open("rb") as source:
                    archive.addfile(member, source)
                content.update(f"{name}\0{hashlib.sha256(data).hexdigest()}\n".encode())
        name = f"{clusterctl.__version__}-{content.hexdigest()[:12]}"
        path = folder / f"{name}.tar.gz"
        Path(aside).replace(path)
    finally:
        Path(aside).unlink(missing_ok=True)
    return Package(name, path)


def _own_files() -> Iterator[tuple[str, Path]]:
    """The files of this package and its shipped jobs and data, by their names in the archive."""
    root = Path(clusterctl.__file__).resolve().parent
    yield from _below(root, "clusterctl")
    with suppress(importlib.metadata.PackageNotFoundError):  # a source folder that is not installed
        own = importlib.metadata.distribution("clusterctl")
        described = (file for file in own.files or () if file.name == "METADATA")  # what an environment must have
        yield from ((file.as_posix(), Path(str(file.locate()))) for file in described)
    shipped = shipped_folder()
    if shipped != root / "shipped":  # a checkout
        for kind in _SHIPPED:
            yield from _below(shipped / kind, f"clusterctl/shipped/{kind}")


def _below(folder: Path, name: str) -> Iterator[tuple[str, Path]]:
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - _LEFT_OUT)
        inside = os.path.relpath(here, folder)
        prefix = name if inside == "." else f"{name}/{inside}"
        yield from ((f"{prefix}/{file}", Path(here, file)) for file in files if not file.endswith(".pyc"))


def _dependencies() -> Iterator[tuple[str, Path]]:
    """The files of the packages that the login node imports, and of their dependencies."""
    waiting: list[tuple[str, frozenset[str]]] = [(name, frozenset()) for name in (*_NEEDED, *_WELCOME)]
    seen: set[str] = set()
    while waiting:
        name, extras = waiting.pop()
        if name.lower() in seen and not extras:
            continue
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if name in _NEEDED:
                raise HostError(f"{name} is not installed here", adding(name)) from None
            continue  # only for another system or an older Python
        if name.lower() not in seen:
            yield from _files_of(distribution, name)
        seen.add(name.lower())
        for line in distribution.requires or ():
            text, _, marker = line.partition(";")
            wanted = _EXTRA.search(marker)
            if (wanted is None or wanted[1] in extras) and (match := _REQUIREMENT.match(text)):
                asked = (extra.strip() for extra in (match[2] or "").split(","))
                waiting.append((match[1], frozenset(filter(None, asked))))


def _files_of(distribution: importlib.metadata.Distribution, name: str) -> Iterator[tuple[str, Path]]:
    for file in distribution.files or ():
        if file.parts[0] == ".." or file.suffix == ".pyc":
            continue
        if file.suffix in (".so", ".pyd"):
            raise HostError(f"{name} contains compiled code that another machine may not run: {file}",
                            f"install its pure Python build: pip install --no-binary {name} {name}")  # fmt: skip
        path = Path(str(file.locate()))
        if path.is_file():
            yield file.as_posix(), path
