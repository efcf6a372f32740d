"""Text that is safe for a terminal, and human-readable numbers, sizes and durations."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clusterctl.shared.record.metrics import number
from clusterctl.shared.record.plain_text import clock as clock
from clusterctl.shared.record.plain_text import duration as duration
from clusterctl.shared.record.plain_text import plain as plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NOW_SECONDS = 60  # a start this soon counts as now: Slurm schedules periodically, and clocks differ
_LONGEST_ESTIMATE_SECONDS = 2 * 366 * 86400
BAR_CELLS = 10
_EIGHTHS = " ▏▎▍▌▋▊▉"


def plain_lines(text: str) -> str:
    """`plain` line by line, keeping newlines."""
    return "\n".join(map(plain, text.split("\n")))


def as_shown(line: bytes) -> str:
    """A log line as a terminal would finally show it: the text after the last carriage return, made plain."""
    return plain(line.decode(errors="replace").rstrip("\r").rpartition("\r")[2])


def when(moment: float, now: float) -> str:
    """`now`, `in 2h10m` or `unknown`: behind a job without a time limit, Slurm's estimates are a century ahead."""
    away = moment - now
    if away > _LONGEST_ESTIMATE_SECONDS:
        return "unknown"
    return "now" if away <= NOW_SECONDS else f"in {duration(away)}"


def hours_text(hours: float) -> str:
    """GPU-hours: 0.25, 7.50, 1234."""
    return f"{hours:.2f}" if hours < 10 else f"{hours:.0f}"


def share(done: float | None, total: float | None) -> str:
    """12/20, or 12 if the total is unknown."""
    if done is None:
        return ""
    return f"{done:.0f}" if total is None else f"{done:.0f}/{total:.0f}"


def as_bytes(size: float) -> str:
    """A size in at most three digits: 512M, 1.5G, 80G."""
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
    """A bar of `width` characters, filled to `share` (0 to 1) in eighths of a character; full only at 1."""
    whole, rest = divmod(int(min(1.0, max(0.0, share)) * width * 8), 8)
    return ("█" * whole + _EIGHTHS[rest].strip()).ljust(width)


def progress_bar(share: float) -> str:
    """A bar with its percentage, for a table cell."""
    return f"{bar(share, BAR_CELLS)}{int(share * 100):>4}%"


def ranges(numbers: Iterable[int], width: int) -> list[str]:
    """Ascending numbers in `width` digits, consecutive ones joined: 00-03, 07."""
    pieces: list[list[int]] = []
    for each in numbers:
        if pieces and each == pieces[-1][1] + 1:
            pieces[-1][1] = each
        else:
            pieces.append([each, each])
    return [f"{first:0{width}}" + (f"-{last:0{width}}" if last > first else "") for first, last in pieces]


def ranks_text(first: int | None, count: int) -> str:
    """`rank 3` or `4,095 ranks`; empty without a rank."""
    return f"{count:,} ranks" if count > 1 else f"rank {first}" if first is not None else ""


# The output of another machine on this terminal: text, colours and moves of the cursor, and nothing else.

# ECMA-48: control sequences; strings for the terminal (such as its title or the clipboard); other escapes; and control
# characters except tab, backspace, newline and carriage return, those of Unicode in UTF-8.
_SEQUENCE = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]"
    rb"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|(?=\x1b|\Z))"
    rb"|\x1b[ -/]*[0-OQ-WYZ`-~\\]"
    rb"|[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]|\xc2[\x80-\x9f]"
    rb"|\x1b|\xc2(?![\xa0-\xbf])"  # alone: what follows is left out, and then something else would follow
)
# Colours, the cursor's moves and visibility, and erasing: what a table and a progress bar consist of. A query is not
# among them: the terminal would answer it on this machine's standard input.
_HARMLESS = re.compile(rb"\x1b\[(?:[0-9;]*[A-HJKm]|\?25[hl])")
_UNFINISHED = re.compile(rb"(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)|\xc2)\Z")
_LONGEST = 4096


class ForeignOutput:
    """Passes bytes on to `write` without what could do more than show them; sequences may come in pieces."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write, self._rest = write, b""

    def take(self, data: bytes) -> None:
        data = self._rest + data
        begun = _UNFINISHED.search(data)
        self._rest = data[begun.start() :] if begun else b""
        shown = data[: begun.start()] if begun else data
        if len(self._rest) > _LONGEST:
            self._rest = self._rest[:2]  # its content will not be shown anyway
        self._write(_SEQUENCE.sub(lambda found: found[0] if _HARMLESS.fullmatch(found[0]) else b"", shown))
