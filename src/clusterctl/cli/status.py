"""`clusterctl status`: show runs."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from clusterctl.api.find import Stage, query, run_columns, to_json
from clusterctl.cli.options import cluster_option, echo_json, warn_of
from clusterctl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from clusterctl.api.find import Query, Report

LOOK_SECONDS = 2.0
_DEFAULT_COUNT = 10
_OUTPUTS = ["table", "wide", "json", "jsonl", "csv"]


@click.command(short_help="Show runs: stage, progress, accuracy")
@click.argument("names", metavar="[RUN]...", nargs=-1)
@click.option("-n", "count", metavar="N", type=click.IntRange(min=1), help="The newest N; default: 10.")
@click.option("-a", "--all", "everything", is_flag=True, help="All runs, however old.")
@click.option("--name", metavar="GLOB", multiple=True, help="Runs whose job or id is like this: 'cora*'.")
@click.option("--state", "stage", metavar="STAGE", multiple=True, help="In this stage, or: alive, running, ended.")
@click.option("--since", metavar="AGE", help="Submitted no longer ago than this: 90m, 8h, 2d.")
@click.option("-w", "--watch", is_flag=True, help="Show them again every 2 seconds, until Ctrl-C.")
@click.option("-o", "output", type=click.Choice(_OUTPUTS), default="table", help="What stdout gets.")
@cluster_option
def status(
    names: tuple[str, ...], count: int | None, everything: bool, watch: bool, output: str, **chosen: Any
) -> None:
    """Show RUNs, or the newest ones: stage, progress, time left, loss, accuracy, throughput.

    \b
    Examples:
      clusterctl status
      clusterctl status --watch
      clusterctl status --state running --since 2d
      clusterctl status @last -o json
    """
    narrowed = bool(chosen["name"] or chosen["stage"] or chosen["since"])
    if names and (narrowed or everything or count):
        raise UsageError("RUN names the runs already", "leave out -n, -a, --name, --state and --since")
    if watch and output in ("json", "csv"):
        raise UsageError(f"--watch does not end, and {output} has one", "use -o jsonl: a line whenever a run changes")
    most = None if everything else count or _DEFAULT_COUNT
    wanted = query(names, **chosen, count=most)
    if watch:
        _watch(wanted, output)
        return
    found = wanted.look()
    if names and not found.statuses:
        raise found.problems[0]
    if found.statuses or output in ("json", "csv"):
        _show(found, output)
    elif not found.problems and output in ("table", "wide"):
        click.echo("no such runs" if narrowed else "no runs yet; try: clusterctl submit cora --follow", err=True)
    warn_of(found.problems)


def _show(found: Report, output: str) -> None:
    if output in ("table", "wide"):
        from clusterctl.display import runs_table, terminal  # rich: for people only

        runs_table.show_runs(terminal.data(), found.statuses, found.as_of, wide=output == "wide")
        newest = found.statuses[0] if found.statuses else None
        never_started = newest and newest.stage is Stage.CANCELLED and newest.reason
        if newest and (never_started or newest.stage in (Stage.FAILED, Stage.TIMED_OUT, Stage.LOST)):
            from clusterctl.display.explanation import first_cause

            click.echo(f"{newest.stage}: {first_cause(newest)}\nnext: clusterctl why {newest.record.run.id}", err=True)
    elif output == "json":
        echo_json(to_json(found))
    elif output == "jsonl":
        for run in to_json(found)["runs"]:
            click.echo(json.dumps(run))
    else:
        import csv

        columns = [column for column in run_columns() if column not in ("metrics", "after")]
        writer = csv.DictWriter(sys.stdout, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(to_json(found)["runs"])


def _watch(wanted: Query, output: str) -> None:
    def reports() -> Iterator[Report]:
        while True:
            yield wanted.look()
            time.sleep(LOOK_SECONDS)

    if output != "jsonl":
        from clusterctl.display import runs_table, terminal

        runs_table.watch_runs(reports(), terminal.data(), wide=output == "wide")
        return
    printed: dict[str, object] = {}
    for found in reports():
        for run in to_json(found)["runs"]:
            news = {name: value for name, value in run.items() if name != "seconds_left"}
            if printed.get(run["id"]) != news:
                printed[run["id"]] = news
                click.echo(json.dumps(run))
