"""A task's request to restart the run: a mark for the batch script, as there is no scontrol inside a container.

The script acts on it when all tasks have exited (docs/decisions/recovery-and-resume.md). requeue.json records the
reason, for people, and the attempt's progress, for the next request.
"""

from __future__ import annotations

import time
from enum import StrEnum

from clusterctl.runs import marks
from clusterctl.runs.fields import read_fields
from clusterctl.runs.files import is_listed, write_json
from clusterctl.runs.layout import Attempt, RunDir

PATIENCE_SECONDS = 60.0  # with rank 0, which may be writing a checkpoint


class Refusal(StrEnum):
    """Why the batch script did not requeue a run: `refused` in host.json."""

    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"
    NO_PROGRESS = "no-progress"
    RESTART_LIMIT = "restart-limit"
    IN_ALLOCATION = "in-allocation"
    REQUEUE_FAILED = "requeue-failed"


def request_restart(attempt: Attempt, reason: str, *, step: float | None = None, progress: bool | None = None) -> None:
    """Request a restart of the run of `attempt`; to be called by one rank before any rank exits.

    `reason` is "warned" or "hang". A run without progress is not restarted: by default, one whose `step` is not beyond
    that of the last request. An unknown step counts as progress, since the number of restarts is limited.
    """
    path = RunDir(attempt.path.parents[1]).requeue_json
    if progress is None:
        last = read_fields(path).number("step")
        progress = step is None or last is None or step > last
    record = {"attempt": attempt.number, "reason": reason, "time": time.time(), "step": step, "progress": progress}
    write_json(path, record)
    marks.ask_for_restart(attempt, progress=progress)


def wait_for_request(attempt: Attempt, seconds: float = PATIENCE_SECONDS) -> bool:
    """Wait for another rank's request, since srun ends all ranks when the first one exits; False after the timeout."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if is_listed(marks.restart_file(attempt)):
            return True
        time.sleep(0.1)
    return False
