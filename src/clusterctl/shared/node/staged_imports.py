"""Imports from the node's local copies of modules, where `staging` puts this file beside a `sitecustomize`.

Modules keep their location: `__file__`, data files, native libraries and tracebacks refer to the original. Only source
and bytecode are read from the copy. Modules missing in the copy, and modules in the run's working directory that the
run has changed, are imported from the original.

Python runs `sitecustomize` at the start of every process, with any interpreter, so this file supports Python 3.7.
"""

from __future__ import annotations

import fcntl
import os
import sys
from importlib import import_module
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)

TYPE_CHECKING = False  # `typing` takes a millisecond
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Folder = tuple[str, str, bool]

FOLDERS = "folders"  # the file that lists the copied folders
_OF_COPIES = (ExtensionFileLoader, EXTENSION_SUFFIXES), (SourceFileLoader, SOURCE_SUFFIXES)
_OF_ORIGINALS = (*_OF_COPIES, (SourcelessFileLoader, BYTECODE_SUFFIXES))


class StagedLoader(SourceFileLoader):
    """Loads the module at `path` from `copy`."""

    def __init__(self, fullname: str, path: str, copy: str) -> None:
        super().__init__(fullname, path)
        self._copy = copy

    def path_stats(self, path: str) -> Mapping[str, Any]:
        return super().path_stats(self._place(path))

    def get_data(self, path: str) -> bytes:
        return super().get_data(self._place(path))

    def set_data(self, path: str, data: Any, *, _mode: int = 0o600) -> None:
        super().set_data(self._place(path), data, _mode=_mode)

    def _place(self, path: str) -> str:
        """Where to read or write `path`: source and bytecode in the copy, anything else in its original place."""
        if path == self.path:
            return self._copy
        folder, name = os.path.split(path)
        if folder == os.path.join(os.path.dirname(self.path), "__pycache__"):
            return os.path.join(os.path.dirname(self._copy), "__pycache__", name)
        return path


class StagedFinder(FileFinder):
    """Finds modules of the folder `path` in its `copy`. With `changes`, modules changed since then are not found."""

    def __init__(self, path: str, copy: str, changes: bool) -> None:
        super().__init__(path, *_OF_ORIGINALS)
        self._in_copy = FileFinder(copy, *_OF_COPIES)
        self._changes = changes

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = self._in_copy.find_spec(fullname, target)
        if spec is None or spec.loader is None or spec.origin is None:  # not there, or a namespace package
            return super().find_spec(fullname, target)
        copy = spec.origin
        original = self.path + copy[len(self._in_copy.path) :]
        if self._changes and _stamp(copy) != _stamp(original):
            return super().find_spec(fullname, target)
        if isinstance(spec.loader, SourceFileLoader):
            spec.loader = StagedLoader(fullname, original, copy)
        else:  # the copy contains only the names of native modules
            spec.loader = ExtensionFileLoader(fullname, original)
        spec.origin = original
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations = [os.path.dirname(original)]
        return spec

    def invalidate_caches(self) -> None:
        super().invalidate_caches()
        self._in_copy.invalidate_caches()


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, int(status.st_mtime)


def finding(folders: Iterable[Folder]) -> Callable[[str], StagedFinder]:
    """The path hook for `folders`: each with its copy and whether the run may change it."""
    known = list(folders)

    def hook(path: str) -> StagedFinder:
        for original, copy, changes in known:
            if path == original or path.startswith(original + os.sep):
                place = copy + path[len(original) :]
                if os.path.isdir(place):
                    return StagedFinder(path, place, changes)
        raise ImportError("no copy of it", path=path)

    return hook


def read_folders(folder: str) -> list[Folder]:
    """The folders copied by `staging` below `folder`."""
    with open(os.path.join(folder, FOLDERS), encoding="utf-8", errors="surrogateescape") as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    return [(original, copy, bool(changes)) for original, copy, changes in lines]


def install(folder: str) -> None:
    """Import from the copies below `folder`, and protect them from removal while this process runs."""
    hold = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(hold, fcntl.LOCK_SH | fcntl.LOCK_NB)
        folders = read_folders(folder)
    except OSError:  # it is being removed
        os.close(hold)
        return
    sys.path_hooks.insert(0, finding(folders))
    # Python may have a finder of its own for such a folder already, and would keep it.
    for path in list(sys.path_importer_cache):
        if any(path == original or path.startswith(original + os.sep) for original, _, _ in folders):
            del sys.path_importer_cache[path]


def main() -> None:
    """What `sitecustomize` does."""
    here = os.path.dirname(os.path.abspath(__file__))
    install(os.path.dirname(here))
    # Run the environment's own `sitecustomize`, which this one shadows, if there is one.
    sys.path[:] = [path for path in sys.path if path != here]
    this = sys.modules.pop("sitecustomize")
    try:
        import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", this)
