"""`clusterctl logs`: show what the ranks of a run wrote."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from clusterctl.cli.options import cluster_option, runs_named
from clusterctl.display.plain import as_shown
from clusterctl.errors import UsageError
from clusterctl.observe.follow import watch
from clusterctl.observe.logs import Logs, Selection, check_selection
from clusterctl.observe.record import read_record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.observe.logs import Line, Source


@click.command(short_help="Show what the ranks of a run wrote")
@click.argument("name", metavar="RUN")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends; Ctrl-C leaves the run alone.")
@click.option("--rank", metavar="N", type=click.IntRange(min=0), help="One rank; default: all, each line with its rank.")
@click.option("--attempt", metavar="N", type=click.IntRange(min=0), help="One attempt; default: all.")
@click.option("--tail", metavar="N", type=click.IntRange(min=0), help="The last N lines of each file.")
@click.option("--stdout", "streams", flag_value="out", help="Standard output alone.")
@click.option("--stderr", "streams", flag_value="err", help="Standard error alone.")
@click.option("--host", is_flag=True, help="Also the batch script's own log.")
@cluster_option
def logs(
    name: str,
    follow: bool,
    rank: int | None,
    attempt: int | None,
    tail: int | None,
    streams: str | None,
    host: bool,
    cluster: str | None,
) -> None:
    """Show what the ranks of RUN wrote, rank by rank; each line begins with its rank where there are several.

    \b
    Examples:
      clusterctl logs cora -f
      clusterctl logs @last --rank 0 --tail 20
    """
    (run,) = runs_named((name,), cluster)
    record = read_record(run)
    selection = Selection(attempt, rank, (streams,) if streams else ("out", "err"), host)
    logs = Logs(run, selection, tail)
    labels = _Labels(tasks=record.job.resources.nodes * record.tasks_per_node, one_rank=rank is not None)
    if not follow:
        check_selection(run, selection)
        _print(logs.read(ended=True), labels)
        return
    for status in watch(run, record.cluster):
        _print(logs.read(ended=status.stage.ended and status.sure), labels)
    click.echo(f"{run.id}: {status.stage}", err=True)


class _Labels:
    """Whose line it is: `r03 ` with several ranks, `a1 r03 ` from the second attempt on, `host ` of the batch script."""
