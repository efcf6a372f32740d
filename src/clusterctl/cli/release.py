"""`clusterctl release`: let a run start that was submitted with --hold."""

from __future__ import annotations

import click

from clusterctl.cli.options import cluster_option, runs_named
from clusterctl.errors import UsageError
from clusterctl.observe.status import report
from clusterctl.runs.stages import Stage
from clusterctl.slurm import Slurm


@click.command(short_help="Let a run start that was submitted with --hold")
@click.argument("name", metavar="RUN")
@cluster_option
def release(name: str, cluster: str | None) -> None:
    """Let RUN start, which was submitted with --hold.

    \b
    Example:
      clusterctl release @last
    """
    found = report(runs_named((name,), cluster))
    if found.problems:
        raise found.problems[0]
    (status,) = found.statuses
    run = status.record.run
    if status.stage is not Stage.QUEUED or status.job_id is None:
        raise UsageError(f"{run.id} does not wait to start: {status.stage}", f"clusterctl status {run.id}")
    Slurm.of(status.record.cluster).release([status.job_id])
    click.echo(f"released {run.id}", err=True)
