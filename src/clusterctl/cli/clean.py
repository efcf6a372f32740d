"""`clusterctl clean`: disk usage, and removing what is no longer needed."""

from __future__ import annotations

from typing import Any

import click

from clusterctl.api import clean as api
from clusterctl.cli.options import cluster_option, confirmed, echo_json, output_option, warn_of
from clusterctl.display.plain import as_bytes


@click.command(short_help="Show disk usage and remove old runs")
@click.option("--older-than", metavar="AGE", help="Also remove runs that ended longer ago than this: 8h, 30d; 0d: all.")
@click.option("--keep-best", is_flag=True, help="Keep the best run of each job, by the score shown in `status`.")
@click.option("--checkpoints-only", is_flag=True, help="Remove only the checkpoints of those runs.")
@cluster_option
@output_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
def clean(output: str, yes: bool, **wanted: Any) -> None:
    """Show the disk usage of runs, code, data sets, images and caches, list what can be removed, and ask.

    Code that no run refers to can be removed and, with --older-than, old runs. Queued, held and running runs are kept,
    and so are the runs they wait for, their code, and other users' runs. With -o json, nothing is removed without
    --yes.

    \b
    Examples:
      clusterctl clean
      clusterctl clean --older-than 30d --keep-best
      clusterctl clean --older-than 7d --checkpoints-only --yes
    """
    found = api.clean(**wanted)
    warn_of(found.problems)
    if output == "json":
        done = found.carry_out() if yes else found
        warn_of(done.problems if yes else ())
        echo_json(api.to_json(done, removed=yes))
        return
    from clusterctl.display import columns, terminal  # rich: for people only

    columns.show_disk(terminal.data(), found)
    if not found.removals:
        click.echo("nothing to remove", err=True)
    elif confirmed(f"remove {_sum(found)}?", yes=yes):
        done = found.carry_out()
        warn_of(done.problems)
        click.echo(f"removed {_sum(done)}", err=True)


def _sum(found: api.CleanUp) -> str:
    return f"{len(found.removals)}, {as_bytes(sum(one.bytes for one in found.removals))}"
