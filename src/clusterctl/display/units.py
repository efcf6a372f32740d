"""Numbers where there is little room: sizes, bars, and the scales of charts. Standard library only."""

from __future__ import annotations

from clusterctl.runs.vocabulary import number

_EIGHTHS = " ▏▎▍▌▋▊▉"


def as_bytes(size: float) -> str:
    """A size in three digits: 512M, 1.5G, 80G."""
    for unit in "BKMGTP":
        if size < 999.5 or unit == "P":
            return f"{size:.0f}{unit}" if size >= 9.95 or unit == "B" else f"{size:.1f}{unit}"
        size /= 1024
    raise AssertionError("unreachable")


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
