"""Prefixes every line that a task prints with the time, so that the logs of all ranks can be merged.

Output that bypasses sys.stdout and sys.stderr, from C libraries or a user's own program, is not changed: `LogTimes`
records when it was written, in a file beside the log.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

from clusterctl.shared.record.files import Lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from clusterctl.shared.record.layout import Attempt


LENGTH = len("2026-01-02T03:04:05.678Z ")


def stamp(seconds: float) -> str:
    """The time in UTC, as printed at the beginning of a line."""
    whole, milliseconds = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03}Z "


class Stamped:
    """A text stream that prefixes each line of `stream` with the time. Each write causes one write to `stream`."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.time) -> None:
        self._stream, self._clock = stream, clock
        self._at_beginning = True

    def write(self, text: str) -> int:
        if text:
            now = stamp(self._clock())
            begun = now + text if self._at_beginning else text
            self._at_beginning = text.endswith("\n")
            body, end = (begun[:-1], "\n") if self._at_beginning else (begun, "")
            self._stream.write(body.replace("\n", "\n" + now) + end)
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def stamped_output() -> Iterator[None]:
    """A context in which printed lines start with the time."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (Stamped(stream) for stream in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


_STREAMS = ("out", "err")
_LOOK_SECONDS = 1.0


class LogTimes:
    """Records times for the logs of one rank, in its task. `look` does nothing within a second of the last call."""

    def __init__(self, attempt: Attempt, rank: int, clock: Callable[[], float] = time.time) -> None:
        self._path = attempt.log_times(rank)
        self._logs = {stream: attempt.log(rank, stream) for stream in _STREAMS}
        self._sizes = dict.fromkeys(_STREAMS, 0)
        self._clock = clock
        self._looked = 0.0
        self._notes: Lines | None = None

    def look(self, *, last: bool = False) -> None:
        """Record the current sizes of the logs. A missing log or a failing disk is not an error."""
        now = self._clock()
        if now - self._looked < _LOOK_SECONDS and not last:
            return
        for stream, path in self._logs.items():
            with suppress(OSError):
                log = path.stat()
                if log.st_size > self._sizes[stream]:
                    self._sizes[stream] = log.st_size
                    if self._notes is None:
                        self._notes = Lines(self._path)
                    # the time of its last line, though a file server's clock may differ
                    self._notes.append({stream: log.st_size, "time": min(now, max(self._looked, log.st_mtime))})
        self._looked = now
