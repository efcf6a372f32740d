"""`clusterctl usage`: what runs have used."""

from __future__ import annotations

import sys
from typing import Any

import click

from clusterctl.api import usage as api
from clusterctl.cli.options import cluster_option, echo_json, warn_of


@click.command(short_help="Sum up the GPU-hours and CPU-hours of runs")
@click.option("--by", type=click.Choice(["user", "job", "week"]), default="user", help="One row for each of these.")
@click.option("--since", metavar="AGE", help="Count no hours before this: 8h, 30d; default: all.")
@click.option("-o", "output", type=click.Choice(["table", "json", "csv"]), default="table", help="Output format.")
@cluster_option
def usage(output: str, **wanted: Any) -> None:
    """Sum up the GPU-hours and CPU-hours of all attempts of the runs in the folder, and how busy GPUs and CPUs were.

    REPEATED is the share of the time whose steps were lost in a failure or restart and done again. The hours are those
    of what runs asked for, read from their directories: runs that were removed and other jobs do not count.

    \b
    Examples:
      clusterctl usage
      clusterctl usage --by week --since 90d
      clusterctl usage --by job -o csv
    """
    found = api.usage(**wanted)
    record = api.to_json(found)
    if output == "json":
        echo_json(record)
    elif output == "csv":
        import csv

        writer = csv.DictWriter(sys.stdout, list(record["total"]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(record["rows"])
    elif found.rows:
        from clusterctl.display import terminal, usage_table  # rich: for people only

        usage_table.show(terminal.data(), found)
    else:
        click.echo("no run has started in this time" if found.since else "no run has started yet", err=True)
    warn_of(found.problems)
