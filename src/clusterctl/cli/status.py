"""`clusterctl status`: show runs."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import click

from clusterctl.cli.options import cluster_option, runs_named, warn
from clusterctl.config import chosen_runs_folder
from clusterctl.observe.find import newest_first
from clusterctl.observe.status import report, to_json
from clusterctl.runs.stages import Stage

if TYPE_CHECKING:
    from clusterctl.observe.stage import Status


@click.command(short_help="Show runs: stage, progress, accuracy")
@click.argument("names", metavar="[RUN]...", nargs=-1)
@click.option("-n", "count", metavar="N", type=click.IntRange(min=1), default=10, help="The newest N; default: 10.")
@click.option("-a", "--all", "everything", is_flag=True, help="All runs, however old.")
@click.option("-o", "output", type=click.Choice(["table", "json"]), default="table", help="What stdout gets.")
@cluster_option
def status(names: tuple[str, ...], count: int, everything: bool, output: str, cluster: str | None) -> None:
    """Show RUNs, or the newest ones: stage, progress, accuracy.

    \b
    Examples:
      clusterctl status
      clusterctl status @last -o json
    """
    if names:
        runs = runs_named(names, cluster)
    else:
        newest = newest_first(chosen_runs_folder(cluster))
        runs = list(newest if everything else itertools.islice(newest, count))
    found = report(runs)
    if names and not found.statuses:
        raise found.problems[0]
    if output == "json":
        click.echo(json.dumps(to_json(found), indent=1))
    elif found.statuses:
        from clusterctl.display import table, terminal  # rich: for people only

        table.show_runs(terminal.data(), found.statuses, found.as_of)
        _point_to_why(found.statuses[0])
    elif not found.problems:
        click.echo("no runs yet; try: clusterctl submit cora --follow", err=True)
    for problem in found.problems:
        warn(problem.message, problem.hint)


def _point_to_why(newest: Status) -> None:
    """Of the first run shown, the cause of its failure, as that is what one wants to know next."""
    if newest.stage in (Stage.FAILED, Stage.TIMED_OUT, Stage.LOST):
        from clusterctl.display.plain import plain
        from clusterctl.insight.why import explain, headline
        from clusterctl.observe.traces import gather

        cause = plain(headline(explain(gather(newest))))
        click.echo(f"{newest.stage}: {cause}\nnext: clusterctl why {newest.record.run.id}", err=True)
