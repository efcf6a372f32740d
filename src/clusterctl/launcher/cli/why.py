"""`clusterctl why`: explain why a run is waiting or has failed, and whether a running one is healthy."""

from __future__ import annotations

import click

from clusterctl.launcher.api.find import find
from clusterctl.launcher.cli.options import cluster_option, echo_json, output_option
from clusterctl.launcher.display.explanation import explanation, to_json


@click.command(short_help="Explain why a run is waiting or has failed")
@click.argument("name", metavar="RUN")
@output_option
@cluster_option
def why(name: str, output: str, cluster: str | None) -> None:
    """Explain why RUN failed: the first cause, its rank and node, what followed from it, and what to type next.

    For a queued run: why it is waiting, what it requests compared with what is free, Slurm's start estimate, and the
    smallest change that would let it start now. For a running run: whether all ranks are making progress, which rank is
    stuck, and which ranks slow the others down.

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
