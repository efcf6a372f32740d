"""Cancel runs, whether pending or running."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.errors import ConfigError, SlurmError
from clusterctl.launch.warm import end_steps
from clusterctl.observe.status import report
from clusterctl.runs.files import exists, write_json
from clusterctl.runs.ownership import user_name
from clusterctl.slurm import Slurm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from clusterctl.api.run import Run
    from clusterctl.observe.stage import Status


@dataclass(frozen=True)
class Cancelled:
    """The outcome for each run; `problems` are errors while reading their status."""

    cancelled: tuple[Status, ...]
    ended: tuple[Status, ...]  # had already ended
    problems: tuple[ConfigError | SlurmError, ...]


def cancel(runs: Iterable[Run], agreed: Callable[[int], bool] = lambda _: True) -> Cancelled:
    """Cancel those of `runs` that have not ended, if `agreed` returns True for their number.

    Raises ConfigError for a damaged run, SlurmError if Slurm refuses or a run has no job yet.
    """
    found = report([run.directory for run in runs])
    for problem in found.problems:  # including runs of another user
        if isinstance(problem, ConfigError):
            raise problem
    ended = tuple(status for status in found.statuses if status.stage.ended and status.sure)
    alive = tuple(status for status in found.statuses if status not in ended)
    if alive and not agreed(len(alive)):
        return Cancelled((), ended, found.problems)
    by_controller: dict[tuple[str, str | None], list[Status]] = {}
    for status in alive:
        by_controller.setdefault(status.record.cluster.controller, []).append(status)
    for statuses in by_controller.values():
        _cancel(statuses)
    return Cancelled(alive, ended, found.problems)


def _cancel(statuses: list[Status]) -> None:
    """Record it in the run directories first: a rank that gets TERM checks there whether the run was cancelled."""
    by = f"{user_name(os.getuid())}@{socket.gethostname()}"
    job_ids = []
    for status in statuses:
        run = status.record.run
        if status.job_id is None:
            raise SlurmError(f"{run.id} has no job yet", "it is still being submitted; try again in a moment")
        if not exists(run.cancel_json):
            write_json(run.cancel_json, {"time": time.time(), "by": by})
        if status.record.allocation is None:
            job_ids.append(status.job_id)
    slurm = Slurm.of(statuses[0].record.cluster)
    for status in statuses:
        if status.record.allocation is not None:
            end_steps(slurm, status.record.run.id, status.record.allocation)
    if job_ids:
        slurm.cancel(job_ids)
