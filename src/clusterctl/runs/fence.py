"""One writer: an attempt that a newer one has replaced leaves.

Two attempts of a run can be alive at once: a node that is cut off goes on training while Slurm starts the run again
elsewhere. The attempt's number is the token; claiming the next one (a mkdir) takes it away from all before it.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from clusterctl.runs.checkpoints import newer_attempt

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.runs.layout import Attempt

LOOK_SECONDS = 1.0


def watch(attempt: Attempt, on_newer: Callable[[int], None], pause: float = LOOK_SECONDS) -> threading.Thread:
    """Call `on_newer` with its number, once, from a thread, when a newer attempt of the run has begun.

    One stat(2) a second; the folder of attempts is listed only when it has changed.
    """

    def look() -> None:
        changed = -1
        while True:
            with suppress(OSError):  # a file system that is away for a while comes back
                stamp = attempt.path.parent.stat().st_mtime_ns
                if stamp != changed:
                    newer = newer_attempt(attempt)
                    changed = stamp
                    if newer is not None:
                        on_newer(newer)
                        return
            time.sleep(pause)

    thread = threading.Thread(target=look, name="fence", daemon=True)
    thread.start()
    return thread
