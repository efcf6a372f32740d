"""Cached digests of a project's files: a file that has not changed since it was read is not read again."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.launch.code_files import open_file, stamp_of
from clusterctl.runs.file_systems import local_devices
from clusterctl.runs.kept import read_kept, write_kept

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from clusterctl.launch.code_files import CodeFile

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
        kept = read_kept(self.file, _FORM)
        self._known = dict(line.split("\t", 1)[::-1] for line in kept.lines) if kept else {}
        self._local, self._began = local_devices(), time.time()

    def of(self, file: CodeFile) -> str:
        """The cached digest of `file`; empty if `learned` has to compute it."""
        if not file.stamp or self.is_remote(file):
            return ""
        look = _look(file)
        if digest := self._known.get(look, ""):
            self._seen[look] = digest
        return digest

    def learned(self, file: CodeFile, read: Callable[[CodeFile], str]) -> str:
        """The digest of `file`, computed by `read` unless a second, closer look finds it cached. Thread-safe."""
        if not file.stamp:
            return read(file)
        if self.is_remote(file):
            file = _looked_at_closely(file)
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
            write_kept(self.file, _FORM, None, (f"{digest}\t{look}" for look, digest in self._seen.items()))
            self._known = self._seen


def _look(file: CodeFile) -> str:
    device, number, size, modified, changed = file.stamp
    return f"{device} {number} {size} {modified} {changed} {file.name}"


def _looked_at_closely(file: CodeFile) -> CodeFile:
    descriptor = open_file(file)
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return file._replace(size=status.st_size, mode=status.st_mode & 0o555, stamp=stamp_of(status))
