"""What folders take on the disk: a file with several names counts once, and no link is followed."""

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
    """Counts folders one after the other: a file that an earlier one has too is the earlier one's."""

    unread: list[str] = field(default_factory=list)  # folders that could not be looked into
    _seen: set[tuple[int, int]] = field(default_factory=set)

    def bytes_of(self, path: Path) -> int:
        """The bytes on disk of a file, or of all files below a folder, that have not been counted yet."""
        return self._bytes(os.fspath(path))

    def _bytes(self, path: str) -> int:
        try:
            status = with_retries(lambda: os.lstat(path))
            if stat.S_ISDIR(status.st_mode):
                return sum([self._bytes(f"{path}/{name}") for name in names_in(path)])
        except FileNotFoundError:  # removed meanwhile
            return 0
        except OSError:
            self.unread.append(path)
            return 0
        if status.st_nlink > 1:
            if (number := (status.st_dev, status.st_ino)) in self._seen:
                return 0
            self._seen.add(number)
        return status.st_blocks * 512
