"""Print log lines with their ranks to stdout: safe text on a terminal, the original bytes to a file or pipe."""

from __future__ import annotations

import functools
import sys
import textwrap
import time
from typing import TYPE_CHECKING

from clusterctl.launcher.display.plain import as_shown, plain, plain_lines, ranges
from clusterctl.launcher.display.terminal import LastLine, frame_of, times_of
from clusterctl.launcher.observe.logs import Nodes, collapsed, is_stamped, time_of
from clusterctl.shared.record.roles import labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from clusterctl.launcher.api.jobs import JobLog
    from clusterctl.launcher.api.logs import Reading
    from clusterctl.launcher.observe.logs import Line
    from clusterctl.shared.record.roles import Seating

# The first lines are written one at a time, the others in batches.
_AT_ONCE_LINES, _TOGETHER_LINES = 100, 500
_MOST_KNOWN = 1000
_LONGEST_LABEL = 40
_STAMP_LENGTH = len("2026-01-02T03:04:05.678+0100 ")


def local_stamp(seconds: float) -> str:
    """The time at the beginning of a line, on this machine's clock with its offset; `--since` accepts it."""
    whole, milliseconds = divmod(int(seconds * 1000), 1000)
    second, offset = _local(whole)
    return f"{second}.{milliseconds:03}{offset} "


@functools.lru_cache(1024)
def _local(second: int) -> tuple[str, str]:
    local = time.localtime(second)
    return time.strftime("%Y-%m-%dT%H:%M:%S", local), time.strftime("%z", local)


def show(reading: Reading, *, times: bool, collapse: bool) -> None:
    """Show the lines written so far."""
    _print(_shown(reading, iter(reading), collapse), _Labels(reading), times=times)
    _warn(reading)


def follow(reading: Reading, *, times: bool, collapse: bool) -> None:
    """Show the lines written so far and new ones, until the run ends."""
    label, last = _Labels(reading), LastLine()
    try:
        for status, added in reading.follow():
            _print(_shown(reading, added, collapse), label, times=times, last=last)
            begun = reading.files.unfinished()
            frame = f"{label.of(begun)}{frame_of(begun)}" if begun else ""
            last.show("  ".join(filter(None, [status.state.value, times_of(status, time.time()), frame])))
    finally:
        last.clear()
    _warn(reading)
    print(f"{reading.record.run.id}: {status.state}", file=sys.stderr)


def show_job(log: JobLog, *, follow: bool) -> None:
    """Show the output of a plain job so far, or until it ends."""
    at_terminal, waiting = sys.stdout.isatty(), list[bytes]()
    for count, (stream, line) in enumerate(log.follow() if follow else log):
        text = as_shown(line).encode() if at_terminal else line
        waiting.append(f"{stream} ".encode() * (len(log.files) > 1) + text + b"\n")
        if follow or count < _AT_ONCE_LINES or len(waiting) >= _TOGETHER_LINES:
            _write(waiting)
    _write(waiting)
    for problem in log.problems():
        print(f"warning: cannot read {plain(problem)}", file=sys.stderr)


def show_errors(reading: Reading) -> None:
    """Show the first traceback and its ranks, then the other errors."""
    run, label, found = reading.record.run, _Labels(reading), reading.errors()
    _warn(reading)
    if not found:
        print(f"no errors in the logs of {run.id}", file=sys.stderr)
    for place, failure in enumerate(found):
        whose = label.of_ranks(failure.attempt, tuple(failure.ranks))
        text = plain(failure.message) if place else plain_lines(failure.text)
        at = local_stamp(failure.time) if failure.time else ""
        print(f"then {whose}{at}{text}" if place else f"{whose}{at}".rstrip() + f"\n{text}")


def _warn(reading: Reading) -> None:
    if note := reading.note:
        print(f"note: {plain(note)}", file=sys.stderr)
    for problem in reading.files.problems:
        print(f"warning: cannot read {plain(problem)}", file=sys.stderr)


def _shown(reading: Reading, lines: Iterator[Line], collapse: bool) -> Iterable[Line]:
    return collapsed(lines) if collapse and reading.ranks > 1 else lines


def _print(lines: Iterable[Line], label: _Labels, *, times: bool, last: LastLine | None = None) -> None:
    at_terminal = sys.stdout.isatty()
    waiting: list[bytes] = []
    for count, line in enumerate(lines):
        text = as_shown(line.text).encode() if at_terminal else line.text
        before = ""
        if times:  # blank if unknown; a task's own is exact, even where the order of the lines is another
            moment = time_of(line.content) if is_stamped(line.content) else None
            before = local_stamp(line.time if moment is None else moment) if line.timed else " " * _STAMP_LENGTH
        waiting.append(f"{label.of(line)}{before}".encode(errors="replace") + text + b"\n")
        if last:
            last.clear()
        if count < _AT_ONCE_LINES or len(waiting) >= _TOGETHER_LINES:
            _write(waiting)
    _write(waiting)


def _write(lines: list[bytes]) -> None:
    sys.stdout.buffer.write(b"".join(lines))
    sys.stdout.buffer.flush()
    lines.clear()


# The label of a line: the attempt from the second on, then its ranks.


def label_of(line: Line, seating: Seating | None = None) -> str:
    """The label on screens, where there is little room: `r03 `, `x32 ` if 32 ranks wrote the same, `trainer r03 `."""
    source = line.source
    if source.rank is None:
        return f"{_attempt(source.attempt)}host "
    return _label(source.attempt, line.ranks or (source.rank,), seating, is_short=True)


def _label(
    attempt: int, ranks: Sequence[int], seating: Seating | None, *, node: str = "", is_short: bool = False
) -> str:
    """The label of `ranks`, the first of which is on `node`."""
    if len(ranks) == 1:
        rank = seating.label(ranks[0]) if seating else f"r{ranks[0]:02}"
        return f"{_attempt(attempt)}{rank} " + (f"{node} " if node else "")
    if is_short:
        return f"{_attempt(attempt)}x{len(ranks):<2} "
    if seating:
        which = textwrap.shorten(labels(map(seating.member, ranks)), _LONGEST_LABEL, placeholder=" ...")
    else:
        pieces = ranges(ranks, 2)
        which = "r" + ",".join([*pieces[:3], *["..."] * (len(pieces) > 3)])
    return f"{_attempt(attempt)}{which} x{len(ranks)} "


def _attempt(number: int) -> str:
    return f"a{number} " if number else ""


class _Labels:
    """The labels of a run's lines: `r03 node2 ` if there are several nodes, `r00-31 x32 ` for many ranks."""

    def __init__(self, reading: Reading) -> None:
        self._several_ranks = reading.ranks > 1
        self._several_nodes = self._several_ranks and reading.record.job.resources.nodes > 1
        self._nodes = Nodes(reading.record.run)
        self._host = "" if reading.record.is_script else "host "  # a user's batch script has all of the output
        self._seating = reading.record.seating
        self._known: dict[tuple[int, tuple[int, ...]], str] = {}

    def of(self, line: Line) -> str:
        source = line.source
        if source.rank is None:
            return f"{_attempt(source.attempt)}{self._host}"
        key = (source.attempt, line.ranks or (source.rank,))
        if key not in self._known:
            if len(self._known) == _MOST_KNOWN:  # each may name thousands of ranks
                self._known.clear()
            self._known[key] = self.of_ranks(*key)
        return self._known[key]

    def of_ranks(self, attempt: int, ranks: tuple[int, ...]) -> str:
        if not self._several_ranks or not ranks:
            return _attempt(attempt)
        is_on_a_node = self._several_nodes and len(ranks) == 1
        node = plain(self._nodes.of(attempt, ranks[0])) if is_on_a_node else ""
        return _label(attempt, ranks, self._seating, node=node)
