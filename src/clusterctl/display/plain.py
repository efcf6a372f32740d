"""Plain text: made safe for a terminal, and numbers, sizes and durations as people read them."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from clusterctl.runs.vocabulary import number

if TYPE_CHECKING:
    from collections.abc import Iterable

# CSI and OSC sequences, other escapes (ECMA-48); then every control character but the tab, and those of Unicode that
# end a line or turn the direction of writing (a name could read as another).
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]"
    r"|[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
NOW_SECONDS = 60  # a start within so long is one now: Slurm looks at its queue once in a while, and clocks differ
_FORESEEN_SECONDS = 2 * 366 * 86400
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))
_EIGHTHS = " ▏▎▍▌▋▊▉"


def plain(text: str) -> str:
    """`text` without escape sequences and control characters, tabs kept: it can move no cursor and set no title."""
    return _ESCAPES.sub("", text).encode("utf-8", "replace").decode()


def plain_lines(text: str) -> str:
    """`plain` line by line: newlines stay."""
    return "\n".join(map(plain, text.split("\n")))


def as_shown(line: bytes) -> str:
    """A line of a log as a terminal would leave it standing: after its last carriage return, and plain."""
    return plain(line.decode(errors="replace").rstrip("\r").rpartition("\r")[2])


def duration(seconds: float) -> str:
    """One or two units: 42s, 3m05s, 2h10m, 4d03h."""
    whole = max(0, int(seconds))
    for (size, unit), (smaller, name) in pairwise(_UNITS):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // smaller:02}{name}"
    return f"{whole}s"


def when(moment: float, now: float) -> str:
    """`now`, or `in 2h10m`. Slurm's estimates lie a century ahead where a job without a time limit is in the way."""
    away = moment - now
    if away > _FORESEEN_SECONDS:
        return "at no time that it can foresee"
    return "now" if away <= NOW_SECONDS else f"in {duration(away)}"


def share(done: float | None, total: float | None) -> str:
    """12/20, or 12 where nobody said how many there will be."""
    if done is None:
        return ""
    return f"{done:.0f}" if total is None else f"{done:.0f}/{total:.0f}"


def as_bytes(size: float) -> str:
    """A size in three digits: 512M, 1.5G, 80G."""
    unit, *larger = list("BKMGTP")
    while size >= 999.5 and larger:
        size /= 1024
        unit = larger.pop(0)
    return f"{size:.0f}{unit}" if size >= 9.95 or unit == "B" else f"{size:.1f}{unit}"


def compact(value: float) -> str:
    """A number for the scale of a chart: 0.0123, 1.5, 120k, 3.4M."""
    if abs(value) < 1e4:
        return number(value) if abs(value) < 10 else f"{value:.4g}"
    for unit in "kMGTP":
        value /= 1000
        if abs(value) < 1000:
            return f"{value:.3g}{unit}"
    return f"{value * 1e15:.2e}"


def bar(share: float, width: int) -> str:
    """A bar of `width` characters, filled to `share` (0 to 1) in eighths of one: full only where all is done."""
    whole, rest = divmod(int(min(1.0, max(0.0, share)) * width * 8), 8)
    return ("█" * whole + _EIGHTHS[rest].strip()).ljust(width)


def ranges(numbers: Iterable[int], width: int) -> list[str]:
    """Ascending numbers in `width` digits, those in a row as one piece: 00-03, 07."""
    pieces: list[list[int]] = []
    for each in numbers:
        if pieces and each == pieces[-1][1] + 1:
            pieces[-1][1] = each
        else:
            pieces.append([each, each])
    return [f"{first:0{width}}" + (f"-{last:0{width}}" if last > first else "") for first, last in pieces]


def ranks_text(first: int | None, count: int) -> str:
    """`rank 3`, or `4,095 ranks`; nothing for what concerns no rank."""
    return f"{count:,} ranks" if count > 1 else f"rank {first}" if first is not None else ""
