"""Reads the times at which log lines without a timestamp were written (`runs.log_times`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.observe.lines import Growing
from clusterctl.runs.fields import Fields
from clusterctl.runs.files import parse_record

if TYPE_CHECKING:
    from pathlib import Path

_BLOCK_BYTES = 2**13  # a thousand ranks hold one each


class WrittenTimes:
    """The times of one log, queried in order of offset."""

    def __init__(self, notes: Path, log: Path) -> None:
        self._growing = Growing(notes)
        self._log = log
        self._notes = self._growing.added(_BLOCK_BYTES)
        self._at_end = False  # of the notes present at the last refresh
        self._newest: float | None = None
        self._size = 0
        self._time: float | None = None

    def refresh(self) -> None:
        """Allow new notes to be read when needed."""
        if self._at_end:
            self._notes = self._growing.added(_BLOCK_BYTES)
            self._at_end = False

    def of(self, offset: int) -> float | None:
        """When the byte at `offset` was written; None for a log without notes. Offsets must not decrease."""
        while self._size <= offset:
            if self._at_end:
                return self._newest
            if (note := next(self._notes, None)) is None:
                self._at_end, self._newest = True, self._of_the_file()
                continue
            record = Fields(parse_record(note) or {})
            size, moment = record.whole(self._log.suffix[1:]), record.moment("time")
            if size is not None and moment is not None:
                self._size, self._time = size, moment
        return self._time

    def _of_the_file(self) -> float | None:
        """The time of the part not covered by notes yet, if there are any."""
        try:
            return None if self._time is None else self._log.stat().st_mtime
        except OSError:
            return self._time
