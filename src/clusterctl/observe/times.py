"""The time at the beginning of a log's line: the one that our tasks write, or one that a program's own logging does."""

from __future__ import annotations

import calendar
import functools
import re
import time

from clusterctl.runs.stamp import LENGTH

_OURS = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")
# 2026-01-02 03:04:05,678 and its kin, in brackets or not. Without a zone it is this machine's, as on its cluster.
_OTHERS = re.compile(
    rb"\[?(?P<second>\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d)"
    rb"(?P<part>[.,]\d{1,9})?(?P<zone>Z|[+-]\d\d:?\d\d)?(?=[\]\s:]|$)"
)


def is_stamped(line: bytes) -> bool:
    """Whether the line begins with the time that a task gave it."""
    return line[23:25] == b"Z " and _OURS.match(line) is not None


def without_stamp(line: bytes) -> bytes:
    return line[LENGTH:] if is_stamped(line) else line


def time_of(line: bytes) -> float | None:
    """Seconds since the epoch; None for a line that does not begin with a time."""
    if line[23:25] == b"Z " and line[19:20] == b"." and line[20:23].isdigit():
        try:
            return _seconds(line[:19], b"Z") + int(line[20:23]) / 1000
        except ValueError:
            return None
    if line[4:5] not in (b"-", b"/") and line[5:6] not in (b"-", b"/"):  # most lines end here
        return None
    match = _OTHERS.match(line)
    if match is None:
        return None
    try:
        whole = _seconds(match["second"], match["zone"])
    except (ValueError, OverflowError):  # the 40th of May
        return None
    return whole + float(b"0." + match["part"][1:]) if match["part"] else whole


@functools.lru_cache(maxsize=4096)
def _seconds(second: bytes, zone: bytes | None) -> float:
    parsed = time.strptime(second.decode().replace("/", "-").replace("T", " "), "%Y-%m-%d %H:%M:%S")
    if zone is None:
        return time.mktime(parsed)
    shift = 0
    if zone != b"Z":
        digits = zone[1:].replace(b":", b"")
        shift = (int(digits[:2]) * 3600 + int(digits[2:]) * 60) * (-1 if zone[:1] == b"-" else 1)
    return calendar.timegm(parsed) - shift
