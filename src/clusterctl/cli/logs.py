"""`clusterctl logs`: show what the ranks of a run wrote."""

from __future__ import annotations

from typing import Any

import click

from clusterctl.api.find import find
from clusterctl.cli.options import cluster_option
from clusterctl.display.logs import follow as show_growing
from clusterctl.display.logs import show, show_errors
from clusterctl.errors import UsageError


@click.command(short_help="Show what the ranks of a run wrote")
@click.argument("name", metavar="RUN")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends; Ctrl-C leaves the run alone.")
@click.option(
    "--rank", metavar="N", type=click.IntRange(min=0), help="One rank; default: all, each line with its rank."
)
@click.option("--node", metavar="NAME", help="The ranks of one node.")
@click.option("--attempt", metavar="N", type=click.IntRange(min=0), help="One attempt; default: all.")
@click.option("--tail", metavar="N", type=click.IntRange(min=0), help="The last N lines of each file.")
@click.option("--since", metavar="TIME", help='Lines from then on: an age (90s, 20m, 4h) or "2026-01-31 12:00:00".')
@click.option("--grep", metavar="REGEX", help="Lines in which this is found.")
@click.option("--errors", is_flag=True, help="The first traceback, and which ranks had it; then the other errors.")
@click.option("--stdout", "stream", flag_value="out", help="Standard output alone.")
@click.option("--stderr", "stream", flag_value="err", help="Standard error alone.")
@click.option("--host", is_flag=True, help="Also the batch script's own log.")
@click.option("-t", "--times", is_flag=True, help="Begin each line with its time (UTC).")
@click.option("--no-collapse", is_flag=True, help="Every rank's line, also where many wrote the same.")
@cluster_option
def logs(
    name: str, follow: bool, errors: bool, times: bool, no_collapse: bool, cluster: str | None, **chosen: Any
) -> None:
    """Show what the ranks of RUN wrote, merged by time; what many ranks wrote alike stands once, with their number.

    \b
    Examples:
      clusterctl logs cora -f
      clusterctl logs @last --rank 0 --tail 20
      clusterctl logs @last --errors
    """
    if errors and (follow or chosen["grep"] or chosen["tail"] is not None):
        raise UsageError("--errors shows errors alone", "leave out --follow, --grep and --tail")
    reading = find(name, cluster).logs(**chosen)
    if errors:
        show_errors(reading)
    elif follow:
        show_growing(reading, times=times, collapse=not no_collapse)
    else:
        show(reading, times=times, collapse=not no_collapse)
