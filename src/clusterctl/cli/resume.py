"""`clusterctl resume`: start a run again that ended before it was finished."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from clusterctl.cli.options import (
    await_end,
    bring_image,
    check_waiting,
    resource_options,
    runs_named,
    typed_settings,
    waiting_options,
    warn_of,
)
from clusterctl.config import load_cluster, resolve_again
from clusterctl.errors import ConfigError, SlurmError, UsageError
from clusterctl.observe.run_record import read_record
from clusterctl.observe.status import report
from clusterctl.runs.files import read_json
from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
    from clusterctl.runs.layout import RunDir


@click.command(short_help="Start a run again that ended before it was finished")
@click.argument("name", metavar="RUN")
@click.option("--cluster", metavar="NAME", help="Where to run now; default: where it ran before.")
@resource_options
@waiting_options
def resume(
    name: str,
    cluster: str | None,
    settings: tuple[str, ...],
    hold: bool,
    follow: bool,
    wait: bool,
    timeout: float | None,
    **shortcuts: str | None,
) -> None:
    """Start RUN again, which failed, timed out, was cancelled, preempted or lost, from its last checkpoint.

    It is the same run with the same code, and a further attempt; resources and most of what it trains with may be
    changed. Secrets are in no file: have them in your environment, as when you submitted it.

    \b
    Examples:
      clusterctl resume cora --follow
      clusterctl resume @last --nodes 4 --time 8h
    """
    from clusterctl.api.resume import resume as send
    from clusterctl.slurm import Slurm

    check_waiting(hold, follow, wait, timeout)
    (run,) = runs_named((name,), cluster)
    _ended_job(run)
    record, content = read_record(run), read_json(run.run_json)
    where = load_cluster(cluster) if cluster else record.cluster
    origins = content.get("origins")
    changed = typed_settings(settings, shortcuts)
    resolved = resolve_again(
        content["job"], origins if isinstance(origins, dict) else {}, where, changed, run_json=run.run_json
    )
    slurm = Slurm.of(where)
    bring_image(resolved)
    warn_of(send(run, resolved, slurm, lambda: _ended_job(run), hold=hold))
    click.echo(run.id)
    if sys.stderr.isatty() and not (follow or wait):
        first = f"clusterctl release {run.id}" if hold else f"clusterctl logs -f {run.id}"
        click.echo(f"attempt {len(run.attempts())} on {where.name}\nnext: {first}", err=True)
    await_end(run, where, follow, wait, timeout)


def _ended_job(run: RunDir) -> str | None:
    """The number of the run's job, which has ended; raises what speaks against another one."""
    found = report([run])
    for problem in found.problems:
        if isinstance(problem, ConfigError):
            raise problem
    (status,) = found.statuses
    if status.stage is Stage.FINISHED:
        raise UsageError(f"{run.id} has finished: there is nothing to resume", "submit the job anew")
    if not status.sure:
        reason = found.problems[0].message if found.problems else "Slurm does not say"
        raise SlurmError(f"cannot tell whether {run.id} has ended: {reason}", "try again when Slurm answers")
    if not status.stage.ended:
        raise UsageError(f"{run.id} has not ended: {status.stage}", f"clusterctl cancel {run.id}")
    return status.job_id
