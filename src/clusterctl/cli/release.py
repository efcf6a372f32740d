"""`clusterctl release`: let a run start that was submitted with --hold."""

from __future__ import annotations

import click

from clusterctl.api.find import find
from clusterctl.cli.options import cluster_option


@click.command(short_help="Let a run start that was submitted with --hold")
@click.argument("name", metavar="RUN")
@cluster_option
def release(name: str, cluster: str | None) -> None:
    """Let RUN start, which was submitted with --hold.

    \b
    Example:
      clusterctl release @last
    """
    run = find(name, cluster)
    run.release()
    click.echo(f"released {run.id}", err=True)
