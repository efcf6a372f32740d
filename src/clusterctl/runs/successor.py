"""Detects a newer attempt of the run: one stat(2) per check, and a listing when the folder has changed.

If other nodes' changes become visible late, the folder's new timestamp may appear before its new entries: then it is
listed repeatedly until they must be visible.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from clusterctl.runs.checkpoints import newer_attempt
from clusterctl.runs.file_systems import lateness

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.runs.layout import Attempt


class SuccessorWatch:
    """Looks for an attempt that is newer than `attempt`."""

    def __init__(self, attempt: Attempt, clock: Callable[[], float] = time.monotonic) -> None:
        self._attempt, self._clock = attempt, clock
        self._late = lateness(attempt.path.parent)
        self._stamp, self._list_until = -1, 0.0

    def look(self) -> int | None:
        """The number of the newest attempt if it is newer than ours. Raises OSError."""
        stamp = self._attempt.path.parent.stat().st_mtime_ns
        now = self._clock()
        if stamp == self._stamp and now >= self._list_until:
            return None
        found = newer_attempt(self._attempt)
        if stamp != self._stamp:
            self._stamp, self._list_until = stamp, now + self._late
        return found
