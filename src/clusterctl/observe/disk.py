"""Disk usage of folders: a file with several hard links counts once, and no symbolic link is followed."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.runs.files import names_in, with_retries

if TYPE_CHECKING:
    from pathlib import Path


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
