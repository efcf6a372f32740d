"""How often a live screen repeats the diagnosis of `why`, which reads many files and may query Slurm."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from clusterctl.shared.record.stages import Stage

if TYPE_CHECKING:
    from clusterctl.launcher.observe.stage import Status

_SECONDS = 3.0  # between two diagnoses of a running run, which only read files
_SHARE = 0.02  # of the time spent on diagnoses, at most: thousands of ranks have thousands of files
_QUEUED_SECONDS = 60.0  # of a queued run, whose diagnosis queries Slurm several times


def state_of(status: Status) -> str:
    """The state that determines the kind of diagnosis: when it changes, a new one is due."""
    if status.stage.ended or status.stage is Stage.QUEUED:
        return "ended" if status.stage.ended else "queued"
    return "idle" if status.attempt and status.attempt.idle_since is not None else "alive"


def pause_after(status: Status, took: float) -> float:
    """Seconds to wait before the next diagnosis; `took`: seconds of the last one."""
    if status.stage.ended:
        return math.inf
    if status.stage is Stage.QUEUED:
        return max(_QUEUED_SECONDS, float(status.record.cluster.polling_floor))
    return max(_SECONDS, took / _SHARE)
