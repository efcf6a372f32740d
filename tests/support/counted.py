"""Which files below a folder this process opens, and how often it lists or stats something there."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Counted:
    """The file system calls below `folder`."""

    folder: str
    opened: Counter[str] = field(default_factory=Counter)  # by path
    listed: Counter[str] = field(default_factory=Counter)
    looked: Counter[str] = field(default_factory=Counter)  # os.stat and os.lstat

    @property
    def opens(self) -> int:
        return self.opened.total()

    @property
    def listings(self) -> int:
        return self.listed.total()

    @property
    def stats(self) -> int:
        return self.looked.total()

    @property
    def repeated(self) -> dict[str, int]:
        """The files that were opened more than once."""
        return {path: times for path, times in self.opened.items() if times > 1}

    def take(self, event: str, arguments: tuple[Any, ...]) -> None:
        kinds = {"open": self.opened, "os.listdir": self.listed, "os.scandir": self.listed, _STAT: self.looked}
        found = kinds.get(event)
        if found is not None and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.path.abspath(os.fsdecode(arguments[0]))  # noqa: PTH100 - resolve() would look at the disk
            if path.startswith(self.folder):
                found[path] += 1


_STAT = "stat"  # has no audit event
_counting: list[Counted] = []
_hooked = False


def _take(event: str, arguments: tuple[Any, ...]) -> None:
    for one in _counting:
        one.take(event, arguments)


def _noted(real: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
    def stat(*arguments: Any, **named: Any) -> os.stat_result:
        _take(_STAT, arguments)
        return real(*arguments, **named)

    return stat


@contextmanager
def counted(folder: Path) -> Iterator[Counted]:
    """Count within the block. An audit hook cannot be removed, so one serves all blocks of the process."""
    global _hooked
    if not _hooked:
        _hooked = True
        sys.addaudithook(_take)
    count = Counted(f"{folder.absolute()}/")
    _counting.append(count)
    real = os.stat, os.lstat
    os.stat, os.lstat = map(_noted, real)
    try:
        yield count
    finally:
        os.stat, os.lstat = real
        _counting.remove(count)
