"""`clusterctl why`: say why a run failed or waits, and how one that runs is doing."""

from __future__ import annotations

import click

from clusterctl.api.find import find
from clusterctl.cli.options import cluster_option, echo_json, output_option
from clusterctl.display.explanation import explanation, to_json


@click.command(short_help="Say why a run waits or failed")
@click.argument("name", metavar="RUN")
@output_option
@cluster_option
def why(name: str, output: str, cluster: str | None) -> None:
    """Say why RUN failed: the first cause, its rank and node, what followed from it, and what to type next.

    Of a run that waits it says why, what it asks against what is free, when Slurm expects to start it, and the smallest
    change that would start it now. Of one that goes on it says whether all ranks get on, which one stands still, and
    which ones slow the others down.

    \b
    Examples:
      clusterctl why @last
      clusterctl why cora -o json
    """
    found = find(name, cluster).why()
    if output == "json":
        echo_json(to_json(found))
        return
    for line in explanation(found):
        click.echo(line)
