"""A shell or a command beside a rank of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from clusterctl.errors import NotFoundError, UsageError
from clusterctl.launch.attach import attach_command
from clusterctl.observe.rank_events import beginning
from clusterctl.slurm import Slurm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.api.run import Run
    from clusterctl.observe.stage import Status
    from clusterctl.runs.layout import Attempt


class Beside(NamedTuple):
    """What to execute: an srun that runs beside the rank."""

    argv: list[str]
    environment: Mapping[str, str]


def beside(run: Run, rank: int = 0, command: tuple[str, ...] = (), *, terminal: bool = False) -> Beside:
    """`command`, or a shell, on the node of `rank`, in its container, with its environment. The run goes on.

    Raises UsageError where the run does not run, or has no such rank; NotFoundError where it has not begun.
    """
    status = run.status()
    node, pid = _began(_alive(status), rank, status)
    slurm = Slurm.of(status.record.cluster)
    assert status.job_id is not None
    argv = attach_command(slurm.path_of("srun"), status.job_id, node, pid, command, terminal)
    return Beside(argv, slurm.environment)


def _alive(status: Status) -> Attempt:
    run = status.record.run
    if status.stage.ended or status.attempt is None or status.job_id is None:
        raise UsageError(f"{run.id} does not run: {status.stage}", f"clusterctl status {run.id}")
    return run.attempt(status.attempt.number)


def _began(attempt: Attempt, rank: int, status: Status) -> tuple[str, int]:
    """Where the rank said that it is: its node as Slurm calls it, and its process there."""
    ranks = attempt.event_files()
    tasks = status.record.job.resources.nodes * status.record.tasks_per_node
    if rank >= tasks:
        raise UsageError(f"no rank {rank}: the run has {tasks}", f"one of 0 to {tasks - 1}")
    began = beginning(ranks[rank]) if rank in ranks else None
    if began and began.node and began.pid is not None:
        return began.node, began.pid
    raise NotFoundError(f"rank {rank} has not begun yet", f"clusterctl status {status.record.run.id}")
