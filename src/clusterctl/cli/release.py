"""`clusterctl release`: release a run submitted with --hold."""

from __future__ import annotations

import click

from clusterctl.api.find import find
from clusterctl.api.sweeps import sweep_meant
from clusterctl.cli.options import cluster_option


@click.command(short_help="Release a run submitted with --hold")
@click.argument("name", metavar="RUN|SWEEP")
@cluster_option
def release(name: str, cluster: str | None) -> None:
    """Release RUN, or all runs of SWEEP, submitted with --hold.

    \b
    Example:
      clusterctl release @last
    """
    held = sweep_meant(name, cluster) or find(name, cluster)
    held.release()
    click.echo(f"released {held.id}", err=True)
