"""What a task asks of the batch script: to start the run again when this attempt has ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from clusterctl.runs.files import write_json
from clusterctl.runs.layout import RunDir

if TYPE_CHECKING:
    from clusterctl.runs.layout import Attempt


def request_restart(attempt: Attempt, reason: str, **details: Any) -> None:
    """Leave requeue.json: this attempt asks that the run be started again; `reason` is "warned" or "hang"."""
    record = {"attempt": attempt.number, "reason": reason, "time": time.time(), **details}
    write_json(RunDir(attempt.path.parent.parent).requeue_json, record)
