"""Makes untrusted text safe to show or send, and formats durations and sets of numbers."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# CSI and OSC sequences, other escapes (ECMA-48); then every control character except tab, and Unicode characters that
# end a line or change the writing direction (which could disguise a name).
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
# A part of the argument of sbatch's --array: Slurm's parser ignores brackets, and all after a %.
_LARGEST_INDEX = 4_000_000  # Slurm's MaxArraySize may be one more
_INDICES = re.compile(r"\[?([0-9]{1,7})\]?(?:-([0-9]{1,7})\]?(?::([0-9]{1,7})\]?)?)?(?:%.*)?", re.DOTALL)


def plain(text: str) -> str:
    """`text` without escape sequences and control characters except tabs, so that it cannot affect the terminal."""
    return _ESCAPES.sub("", text).encode("utf-8", "replace").decode()


def duration(seconds: float) -> str:
    """One or two units: 42s, 3m05s, 2h10m, 4d03h."""
    whole = max(0, int(seconds))
    for (size, unit), (smaller, name) in pairwise(_UNITS):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // smaller:02}{name}"
    return f"{whole}s"


def clock(moment: float, *, date: bool = False) -> str:
    """A time as people read it, on this machine's clock with its zone: `14:05:09 CET`, or with the `date`."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z" if date else "%H:%M:%S %Z", time.localtime(moment))


def stretches(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """The first and the last of each stretch of consecutive numbers, in order."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def ranges(numbers: Iterable[int]) -> str:
    """Such as `1,3,5-7`, as Slurm writes them."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in stretches(numbers))


def numbers_in(indices: str) -> list[int]:
    """The numbers in `1,3,7-15:2%4`, as sbatch reads --array, in order. Raises ValueError for any other text."""
    found: set[int] = set()
    for word in indices.split(","):
        match = _INDICES.fullmatch(word)
        first, last, step = map(int, (match[1], match[2] or match[1], match[3] or 1)) if match else (1, 0, 0)
        if not (first <= last <= _LARGEST_INDEX and step):
            raise ValueError(f"not a list of indices: {indices}")
        found.update(range(first, last + 1, step))
    return sorted(found)
