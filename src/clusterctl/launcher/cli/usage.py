"""`clusterctl usage`: GPU-hours and CPU-hours used by runs, and what one run requested and used."""

from __future__ import annotations

import sys
from typing import Any

import click

from clusterctl.launcher.api import json_output
from clusterctl.launcher.api import usage as api
from clusterctl.launcher.cli.options import cluster_option, echo_json, warn_of
from clusterctl.shared.errors import UsageError


@click.command(short_help="Show hours used by runs, or what a run needs")
@click.argument("run", required=False)
@click.option("--by", type=click.Choice(["user", "job", "week"]), help="Group rows by this; default: user.")
@click.option("--since", metavar="AGE", help="Count only hours within this time: 8h, 30d; default: all.")
@click.option("-o", "output", type=click.Choice(["table", "json", "csv"]), default="table", help="Output format.")
@cluster_option
def usage(run: str | None, output: str, by: str | None, since: str | None, cluster: str | None) -> None:
    """Show the GPU-hours and CPU-hours of all attempts of the runs in the runs folder, and GPU and CPU utilization.

    REPEATED is the share of time spent repeating steps lost in a failure or restart, SPARE that of spare nodes. The
    hours count requested resources and are read from the run directories: removed runs and other jobs are not included.

    With RUN, show what the run requested of each node, the most it used, and the request that would have been enough,
    with headroom: a quarter more memory and CPUs, half as much time again. The memory is what the kernel could not have
    taken back; cached files do not count.

    \b
    Examples:
      clusterctl usage
      clusterctl usage --by week --since 90d
      clusterctl usage --by job -o csv
      clusterctl usage @last
    """
    if run is not None:
        if given := next((flag for flag, value in (("--by", by), ("--since", since)) if value), None):
            raise UsageError(f"{given} adds up several runs, but one is named: {run}", "leave one of them out")
        _show_run(run, cluster, output)
        return
    found = api.usage(cluster, by=by or "user", since=since)
    record = json_output.usage(found)
    if output == "json":
        echo_json(record)
    elif output == "csv":
        _write_csv(list(record["total"]), record["rows"])
    elif found.rows:
        from clusterctl.launcher.display import tables, terminal  # rich: for people only

        tables.show_usage(terminal.data(), found)
    else:
        click.echo("no runs in this time" if found.since else "no runs have started yet", err=True)
    warn_of(found.problems)


def _show_run(name: str, cluster: str | None, output: str) -> None:
    found = api.usage_of(name, cluster)
    if output == "json":
        echo_json(json_output.run_usage(found))
    elif output == "csv":
        _write_csv(list(found.needs.memory._fields), [one._asdict() for one in found.needs.all])
    else:
        from clusterctl.launcher.display import tables, terminal

        tables.show_run_usage(terminal.data(), found)
        click.echo(tables.note_on_usage(found), err=True)
    warn_of(found.problems)


def _write_csv(columns: list[str], rows: list[dict[str, Any]]) -> None:
    import csv

    writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
