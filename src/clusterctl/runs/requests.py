"""A task's request that the run be started again: a mark, as inside a container nobody can ask Slurm.

The batch script acts on it when all tasks have left (docs/decisions/0010-what-is-started-again.md). requeue.json says
why, for people, and how far the attempt came, for the next request.
"""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from clusterctl.runs import marks
from clusterctl.runs.fields import read_fields
from clusterctl.runs.files import write_json
from clusterctl.runs.layout import RunDir

if TYPE_CHECKING:
    from clusterctl.runs.layout import Attempt

EXIT_RESTART = 75  # sysexits.h: try again later
PATIENCE_SECONDS = 60.0  # with rank 0, which may be writing a checkpoint
_LOOK_SECONDS = 0.1


class Refusal(StrEnum):
    """Why the batch script did not send a run back to the queue: `refused` in host.json."""

    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"
    NO_PROGRESS = "no-progress"
    RESTART_LIMIT = "restart-limit"
    REQUEUE_FAILED = "requeue-failed"


def request_restart(attempt: Attempt, reason: str, **details: Any) -> None:
    """Ask that the run of `attempt` be started again; to be called by one rank, before any leaves.

    `reason` is "warned" or "hang". With `step` - how far the attempt came - it is compared with the last request's: a
    run that makes no progress is not started again. `progress` says so outright.
    """
    path = RunDir(attempt.path.parents[1]).requeue_json
    step = details.get("step")
    progress = details.pop("progress", None)
    if progress is None:
        progress = _is_further(step, read_fields(path).number("step"))
    record = {"attempt": attempt.number, "reason": reason, "time": time.time(), "step": step}
    write_json(path, {**record, **details, "progress": bool(progress)})
    marks.ask_for_restart(attempt, progress=bool(progress))


def wait_for_request(attempt: Attempt, seconds: float = PATIENCE_SECONDS) -> bool:
    """Whether the run of `attempt` was asked to be started again, within so many seconds.

    For ranks other than the one that asks: the first that leaves ends them all, as srun's --kill-on-bad-exit says.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if marks.restart_asked(attempt):
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def _is_further(step: Any, last: Any) -> bool:
    """Unknown counts as further: the number of restarts is bounded all the same."""
    both = isinstance(step, int | float) and isinstance(last, int | float)
    return step > last if both else True
