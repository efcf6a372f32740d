"""`clusterctl diff`: show what differs between two runs."""

from __future__ import annotations

import click

from clusterctl.launcher.api import find as api
from clusterctl.launcher.cli.options import cluster_option, echo_json, warn_of


@click.command(short_help="Show what differs between two runs")
@click.argument("first", metavar="RUN1")
@click.argument("second", metavar="RUN2")
@click.option("--code", is_flag=True, help="Also show a line-by-line diff of the code.")
@click.option("-o", "output", type=click.Choice(["table", "json"]), default="table", help="Output format.")
@cluster_option
def diff(first: str, second: str, code: bool, output: str, cluster: str | None) -> None:
    """Show where RUN1 and RUN2 differ: configuration, code, versions, image, and their results.

    The code compared is what each run was submitted with. The exit code is 0 whether or not the runs differ.

    \b
    Examples:
      clusterctl diff cora-20260102 @last
      clusterctl diff cora-20260102 @last --code
      clusterctl diff cora-20260102 @last -o json
    """
    found = api.diff(first, second, cluster)
    lines = found.line_differences() if code else None
    if output == "json":
        echo_json(api.differences_to_json(found, lines))
    else:
        from clusterctl.launcher.display import comparison, terminal  # rich: for people only

        comparison.show(terminal.data(), found, lines or ())
    warn_of(found.problems)
