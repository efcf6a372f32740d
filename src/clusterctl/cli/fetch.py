"""`clusterctl fetch`: copy a run from another machine."""

from __future__ import annotations

from pathlib import Path

import click

from clusterctl.api.elsewhere import elsewhere
from clusterctl.api.export import fetch as fetch_run
from clusterctl.cli.options import cluster_option


@click.command(short_help="Copy a run's files to this machine")
@click.argument("name", metavar="RUN")
@click.option("--output", metavar="FOLDER", help="Output folder; default: RUN in the current folder.")
@click.option("--no-weights", is_flag=True, help="Leave out the trained weights.")
@click.option("--force", is_flag=True, help="Replace FOLDER, which holds an earlier copy.")
@cluster_option
def fetch(name: str, output: str | None, no_weights: bool, force: bool, cluster: str | None) -> None:
    """Copy RUN from its cluster's login node: record, metrics, report, weights, logs, and the program's files.

    The run stays on the cluster. A README.txt in the folder describes the files.

    \b
    Examples:
      clusterctl fetch cora --cluster far
      clusterctl fetch @last --cluster far --output results
    """
    place = elsewhere(cluster)
    click.echo(fetch_run(place, name, Path(output) if output else None, weights=not no_weights, force=force))
