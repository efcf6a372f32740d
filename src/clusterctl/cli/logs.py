"""`clusterctl logs`: show what the ranks of a run wrote."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from clusterctl.cli.options import cluster_option, runs_named
from clusterctl.display.plain import as_shown
from clusterctl.observe.follow import watch
from clusterctl.observe.logs import Logs, Selection, check_selection
from clusterctl.observe.record import read_record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.observe.logs import Line, Source


@click.command(short_help="Show what the ranks of a run wrote")
@click.argument("name", metavar="RUN")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends; Ctrl-C leaves the run alone.")
@click.option(
    "--rank", metavar="N", type=click.IntRange(min=0), help="One rank; default: all, each line with its rank."
)
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
    files = Logs(run, selection, tail)
    several_ranks = rank is None and record.job.resources.nodes * record.tasks_per_node > 1
    if not follow:
        check_selection(run, selection)
        _print(files.read(ended=True), several_ranks)
        return
    for status in watch(run, record.cluster):
        _print(files.read(ended=status.stage.ended and status.sure), several_ranks)
    click.echo(f"{run.id}: {status.stage}", err=True)


def _print(lines: Iterable[Line], several_ranks: bool) -> None:
    """A terminal gets text that cannot move its cursor, a file or a pipe the very bytes."""
    at_terminal = sys.stdout.isatty()
    for line in lines:
        content = as_shown(line.content).encode() if at_terminal else line.content
        sys.stdout.buffer.write(_label(line.source, several_ranks).encode() + content + b"\n")
    sys.stdout.buffer.flush()


def _label(source: Source, several_ranks: bool) -> str:
    """Whose line it is: `r03 ` where there are several ranks, `a1 r03 ` from the second attempt on."""
    attempt = f"a{source.attempt} " if source.attempt else ""
    if source.rank is None:
        return f"{attempt}host "
    return f"{attempt}r{source.rank:02} " if several_ranks else attempt
