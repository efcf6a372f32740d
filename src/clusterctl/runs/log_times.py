"""Records when a program wrote its output, in a file beside its log, for lines without a timestamp of their own.

One record each time a log has grown: {"out": SIZE, "time": TIME}. Output between the previous SIZE and this one was
written at about TIME.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from clusterctl.runs.files import Lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.runs.layout import Attempt

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
                    # the time of its last line, though a file server's clock may differ
                    self._note({stream: log.st_size, "time": min(now, max(self._looked, log.st_mtime))})
        self._looked = now

    def _note(self, record: dict[str, float]) -> None:
        if self._notes is None:
            self._notes = Lines(self._path)
        self._notes.append(record)
