"""Which logs of a followed run to check, and when: rarely if nothing happens, whatever the number of ranks.

A check stats the files and reads those that have grown. While lines arrive there are four checks a second, otherwise
fewer and fewer, down to one in two seconds. Above a thousand files a second they take turns, so that a line of one of
4,096 ranks is found within ten seconds. Lines rarely come alone, so finding one triggers a check of all files. Since
only opening a file revalidates NFS's cached size, some files are opened in turn even if they seem unchanged.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SHORTEST_SECONDS, LONGEST_SECONDS = 0.25, 2.0  # between two checks
SIZES_A_SECOND, OPENS_A_SECOND = 1024, 24
_LIVELY_SECONDS = 10.0  # a file that has grown is included in every check for this long
_MOST_LIVELY = 64

File = TypeVar("File", bound=Hashable)


@dataclass
class Turns(Generic[File]):
    """Cycles through any number of files at `rate` files per second."""

    rate: float
    _place: int = 0

    def next(self, files: Sequence[File], seconds: float) -> Sequence[File]:
        count = int(self.rate * seconds)
        if count >= len(files):
            return files
        first = self._place if self._place < len(files) else 0
        self._place = first + count
        return files[first : self._place]


@dataclass
class LogPace(Generic[File]):
    """Decides for one reader; times are seconds by its clock."""

    _looked: float | None = None
    _looked_at_all: float = 0.0
    _pause: float = SHORTEST_SECONDS
    _surprised: bool = False
    _grew: dict[File, float] = field(default_factory=dict)  # when, the latest last
    _sizes: Turns[File] = field(default_factory=lambda: Turns(SIZES_A_SECOND))
    _opens: Turns[File] = field(default_factory=lambda: Turns(OPENS_A_SECOND))

    def is_due(self, now: float) -> bool:
        return self._looked is None or not 0 <= now - self._looked < self._pause

    def look(self, files: Sequence[File], now: float) -> tuple[set[File], set[File]]:
        """The files to stat, and the files to open whatever their size."""
        seconds = LONGEST_SECONDS if self._looked is None else min(max(now - self._looked, 0.0), LONGEST_SECONDS)
        self._looked = now
        lively = {file for file, grown in self._grew.items() if now - grown < _LIVELY_SECONDS}
        sizes, opens = set(self._sizes.next(files, seconds)), set(self._opens.next(files, seconds))
        if self._surprised and now - self._looked_at_all > len(files) / SIZES_A_SECOND:
            self._looked_at_all, self._surprised = now, False
            sizes = set(files)
        return sizes | (lively & set(files)), opens

    def saw(self, grown: Iterable[File], now: float) -> None:
        """Record which files had grown at the last check."""
        found = list(grown)
        self._surprised |= any(file not in self._grew for file in found)
        for file in found:
            self._grew.pop(file, None)
            self._grew[file] = now
        for file in list(self._grew)[:-_MOST_LIVELY]:
            del self._grew[file]
        self._pause = SHORTEST_SECONDS if found else min(2 * self._pause, LONGEST_SECONDS)
