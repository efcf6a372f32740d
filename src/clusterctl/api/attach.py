"""A shell or a command beside a rank of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.errors import NotFoundError, UsageError
from clusterctl.launch.attach import attach_command
from clusterctl.observe.rank_events import beginning
from clusterctl.slurm import Slurm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.api.run import Run


def beside(
    run: Run, rank: int = 0, command: tuple[str, ...] = (), *, terminal: bool = False
) -> tuple[list[str], Mapping[str, str]]:
    """The words and the environment of an srun for `command`, or a shell, in the container of `rank`. The run goes on.

    Raises UsageError where the run does not run, or has no such rank; NotFoundError where it has not begun.
    """
    status = run.status()
    if status.stage.ended or status.attempt is None or status.job_id is None:
        raise UsageError(f"{run.id} does not run: {status.stage}", f"clusterctl status {run.id}")
    ranks = run.directory.attempt(status.attempt.number).event_files()
    tasks = status.record.job.resources.nodes * status.record.tasks_per_node
    if rank >= tasks:
        raise UsageError(f"no rank {rank}: the run has {tasks}", f"one of 0 to {tasks - 1}")
    began = beginning(ranks[rank]) if rank in ranks else None
    if not began or not began.node or began.pid is None:
        raise NotFoundError(f"rank {rank} has not begun yet", f"clusterctl status {run.id}")
    slurm = Slurm.of(status.record.cluster)
    argv = attach_command(slurm.path_of("srun"), status.job_id, began.node, began.pid, command, terminal)
    return argv, slurm.environment
