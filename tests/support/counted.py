"""Which files below a folder this process opens, and how many folders it lists there."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Counted:
    """What was done below `folder`."""

    folder: str
    opened: Counter[str] = field(default_factory=Counter)  # by path
    listed: Counter[str] = field(default_factory=Counter)

    @property
    def opens(self) -> int:
        return self.opened.total()

    @property
    def listings(self) -> int:
        return self.listed.total()

    @property
    def repeated(self) -> dict[str, int]:
        """The files that were opened more than once."""
        return {path: times for path, times in self.opened.items() if times > 1}

    def take(self, event: str, arguments: tuple[Any, ...]) -> None:
        found = {"open": self.opened, "os.listdir": self.listed, "os.scandir": self.listed}.get(event)
        if found is not None and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.path.abspath(os.fsdecode(arguments[0]))  # noqa: PTH100 - resolve() would look at the disk
            if path.startswith(self.folder):
                found[path] += 1


_counting: list[Counted] = []
_hooked = False


@contextmanager
def counted(folder: Path) -> Iterator[Counted]:
    """Count until the end of the block. An audit hook cannot be taken away: one serves all blocks of the process."""
    global _hooked
    if not _hooked:
        _hooked = True
        sys.addaudithook(lambda event, arguments: [one.take(event, arguments) for one in _counting] and None)
    count = Counted(f"{folder.absolute()}/")
    _counting.append(count)
    try:
        yield count
    finally:
        _counting.remove(count)
