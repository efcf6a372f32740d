"""When a screen that shows `why` all the time may ask again: a diagnosis reads many files, some ask Slurm."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
    from clusterctl.observe.stage import Status

_SECONDS = 3.0  # between two diagnoses of a run that goes on, which read files alone
_SHARE = 0.02  # of the time at most: thousands of ranks have thousands of files
_QUEUED_SECONDS = 60.0  # of a queued run, about which Slurm is asked several questions


def state_of(status: Status) -> str:
    """What decides about the kind of a diagnosis: another one is due when it changes."""
    if status.stage.ended or status.stage is Stage.QUEUED:
        return "ended" if status.stage.ended else "queued"
    return "idle" if status.attempt and status.attempt.idle_since is not None else "alive"


def pause_after(status: Status, took: float) -> float:
    """The seconds until the same question may have another answer worth its cost; `took`: seconds of the last one."""
    if status.stage.ended:
        return math.inf
    if status.stage is Stage.QUEUED:
        return max(_QUEUED_SECONDS, float(status.record.cluster.polling_floor))
    return max(_SECONDS, took / _SHARE)
