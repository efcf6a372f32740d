"""Detects a newer attempt of the run: one stat(2) per check, and a listing when the folder has changed.

If other nodes' changes become visible late, the folder's new timestamp may appear before its new entries: then it is
listed repeatedly until they must be visible. It is also listed while it has a later folder in which no batch script has
recorded its start.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from clusterctl.runs.checkpoints import later_folders, newest_begun
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
        self._unclaimed = False

    def look(self) -> int | None:
        """The number of the newest attempt if it is newer than ours. Raises OSError."""
        stamp = self._attempt.path.parent.stat().st_mtime_ns
        now = self._clock()
        if stamp == self._stamp and now >= self._list_until and not self._unclaimed:
            return None
        later = later_folders(self._attempt)
        if stamp != self._stamp:
            self._stamp, self._list_until = stamp, now + self._late
        found = newest_begun(later)
        self._unclaimed = bool(later) and found is None
        return found
