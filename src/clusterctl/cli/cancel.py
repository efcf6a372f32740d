"""`clusterctl cancel`: end runs, waiting or running."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

import click

from clusterctl.cli.options import cluster_option, confirmed, runs_named, warn
from clusterctl.errors import ConfigError, SlurmError
from clusterctl.observe.status import report
from clusterctl.runs.files import write_json
from clusterctl.slurm import Slurm

if TYPE_CHECKING:
    from clusterctl.observe.stage import Status


@click.command(short_help="End runs, waiting or running")
@click.argument("names", metavar="RUN...", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask before cancelling several runs.")
@cluster_option
def cancel(names: tuple[str, ...], yes: bool, cluster: str | None) -> None:
    """End RUNs, waiting or running. Of one that has ended already it says so.

    \b
    Examples:
      clusterctl cancel cora
      clusterctl cancel @last
    """
    found = report(runs_named(names, cluster))
    for problem in found.problems:
        if isinstance(problem, ConfigError):
            raise problem
        warn(problem.message, problem.hint)
    alive = []
    for status in found.statuses:
        if status.stage.ended and status.sure:
            click.echo(f"{status.record.run.id} has ended already: {status.stage}", err=True)
        else:
            alive.append(status)
    if len(alive) > 1 and not confirmed(f"Cancel {len(alive)} runs?", yes=yes):
        return
    by_controller: dict[tuple[str, str | None], list[Status]] = {}
    for status in alive:
        by_controller.setdefault(status.record.controller, []).append(status)
    for statuses in by_controller.values():
        _cancel(statuses)


def _cancel(statuses: list[Status]) -> None:
    """Say so in the run directories first: a rank that gets TERM looks there whether to leave for good."""
    by = f"{os.environ.get('USER') or os.getuid()}@{socket.gethostname()}"
    job_ids = []
    for status in statuses:
        run = status.record.run
        if status.job_id is None:
            raise SlurmError(f"{run.id} has no job yet", "its submit is under way; try again in a moment")
        if not run.cancel_json.exists():
            write_json(run.cancel_json, {"time": time.time(), "by": by})
        job_ids.append(status.job_id)
    Slurm.of(statuses[0].record.cluster).cancel(job_ids)
    for status in statuses:
        click.echo(f"cancelled {status.record.run.id}", err=True)
