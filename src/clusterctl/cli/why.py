"""`clusterctl why`: say why a run failed or waits, and how one that runs is doing."""

from __future__ import annotations

import json

import click

from clusterctl.api.find import find
from clusterctl.api.why import to_json
from clusterctl.cli.options import cluster_option


@click.command(short_help="Say why a run waits or failed")
@click.argument("name", metavar="RUN")
@click.option("-o", "output", type=click.Choice(["table", "json"]), default="table", help="What stdout gets.")
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
        click.echo(json.dumps(to_json(found), indent=1))
        return
    from clusterctl.display.explanation import explanation

    for line in explanation(found):
        click.echo(line)
