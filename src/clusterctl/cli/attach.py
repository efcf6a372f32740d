"""`clusterctl attach`: a shell beside a rank."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from clusterctl.cli.options import cluster_option, runs_named
from clusterctl.errors import NotFoundError, SlurmError, UsageError
from clusterctl.launch.attach import attach_command
from clusterctl.observe.rank_events import beginning
from clusterctl.observe.status import report
from clusterctl.slurm import Slurm

if TYPE_CHECKING:
    from clusterctl.observe.stage import Status
    from clusterctl.runs.layout import Attempt


@click.command(short_help="Open a shell beside a rank of a run")
@click.argument("name", metavar="RUN")
@click.argument("command", nargs=-1)
@click.option("--rank", metavar="N", type=click.IntRange(min=0), default=0, help="Beside this rank; default: 0.")
@cluster_option
def attach(name: str, command: tuple[str, ...], rank: int, cluster: str | None) -> NoReturn:
    """Open a shell beside a rank of RUN: on its node, in its container, with its environment. RUN goes on.

    With a COMMAND after `--`, run that instead.

    \b
    Examples:
      clusterctl attach @last
      clusterctl attach cora --rank 3 -- nvidia-smi
    """
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not command and not at_terminal:
        raise UsageError("a shell needs a terminal", f"clusterctl attach {name} -- COMMAND")
    found = report(runs_named((name,), cluster))
    for problem in found.problems:
        raise problem
    (status,) = found.statuses
    attempt = _alive(status)
    began = _began(attempt, rank, status)
    slurm = Slurm.of(status.record.cluster)
    assert status.job_id is not None
    argv = attach_command(slurm.path_of("srun"), status.job_id, began["node"], began["pid"], command, at_terminal)
    sys.stdout.flush()
    try:
        os.execve(argv[0], argv, slurm.environment)  # srun itself gets the terminal and its signals
    except OSError as error:
        raise SlurmError(f"srun cannot be run: {error.strerror}", "try it by hand: srun --version") from error


def _alive(status: Status) -> Attempt:
    run = status.record.run
    if status.stage.ended or status.attempt is None or status.job_id is None:
        raise UsageError(f"{run.id} does not run: {status.stage}", f"clusterctl status {run.id}")
    return run.attempt(status.attempt.number)


def _began(attempt: Attempt, rank: int, status: Status) -> dict[str, Any]:
    """Where the rank said that it is: its node as Slurm calls it, and its process there."""
    ranks = attempt.event_files()
    tasks = status.record.job.resources.nodes * status.record.tasks_per_node
    if rank >= tasks:
        raise UsageError(f"no rank {rank}: the run has {tasks}", f"one of 0 to {tasks - 1}")
    began = beginning(ranks[rank]) if rank in ranks else None
    if began and began.node and began.pid is not None:
        return {"node": began.node, "pid": began.pid}
    raise NotFoundError(f"rank {rank} has not begun yet", f"clusterctl status {status.record.run.id}")
