"""`clusterctl usage`: GPU-hours and CPU-hours used by runs."""

from __future__ import annotations

import sys
from typing import Any

import click

from clusterctl.launcher.api import json_output
from clusterctl.launcher.api import usage as api
from clusterctl.launcher.cli.options import cluster_option, echo_json, warn_of


@click.command(short_help="Show GPU-hours and CPU-hours used by runs")
@click.option(
    "--by", type=click.Choice(["user", "job", "week"]), default="user", help="Group rows by this; default: user."
)
@click.option("--since", metavar="AGE", help="Count only hours within this time: 8h, 30d; default: all.")
@click.option("-o", "output", type=click.Choice(["table", "json", "csv"]), default="table", help="Output format.")
@cluster_option
def usage(output: str, **wanted: Any) -> None:
    """Show the GPU-hours and CPU-hours of all attempts of the runs in the runs folder, and GPU and CPU utilization.

    REPEATED is the share of time spent repeating steps lost in a failure or restart, SPARE that of spare nodes. The
    hours count requested resources and are read from the run directories: removed runs and other jobs are not included.

    \b
    Examples:
      clusterctl usage
      clusterctl usage --by week --since 90d
      clusterctl usage --by job -o csv
    """
    found = api.usage(**wanted)
    record = json_output.usage(found)
    if output == "json":
        echo_json(record)
    elif output == "csv":
        import csv

        writer = csv.DictWriter(sys.stdout, list(record["total"]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(record["rows"])
    elif found.rows:
        from clusterctl.launcher.display import tables, terminal  # rich: for people only

        tables.show_usage(terminal.data(), found)
    else:
        click.echo("no runs in this time" if found.since else "no runs have started yet", err=True)
    warn_of(found.problems)
