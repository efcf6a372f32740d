"""`clusterctl nodes`: show free resources and where a job would fit."""

from __future__ import annotations

import click

from clusterctl.api.nodes import fit, fit_record, nodes_record
from clusterctl.api.nodes import nodes as nodes_of
from clusterctl.cli.options import echo_json, output_option
from clusterctl.errors import UsageError


@click.command(short_help="Show free resources and where a job would fit")
@click.option("--cluster", metavar="NAME", help="Cluster to query; default: as in submit.")
@click.option("--for", "job", metavar="JOB", help="Show where and when JOB would fit, without submitting it.")
@click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True, help="With --for: override a setting, as in submit."
)
@output_option
def nodes(cluster: str | None, job: str | None, settings: tuple[str, ...], output: str) -> None:
    """Show a cluster's partitions and nodes: what is free now, and what is drained and why.

    A free node may still be closed to you by limits or priorities: --for asks Slurm whether a job would start.

    \b
    Examples:
      clusterctl nodes
      clusterctl nodes --for reddit --set resources.nodes=4
    """
    if settings and not job:
        raise UsageError("--set needs --for", "clusterctl nodes --for JOB --set KEY=VALUE")
    if output == "json":
        known = fit_record(fit(job, cluster, overrides=settings)) if job else nodes_record(nodes_of(cluster), cluster)
        echo_json(known)
        return
    from clusterctl.display import capacity, terminal
    from clusterctl.display.plain import plain_lines

    console = terminal.data()
    if job:
        found = fit(job, cluster, overrides=settings)
        capacity.show_room(console, found.rooms)
        console.print()
        click.echo(plain_lines(capacity.verdict(found.answer)))
    else:
        inventory = nodes_of(cluster)
        capacity.show_partitions(console, inventory)
        console.print()
        capacity.show_nodes(console, inventory.nodes.values())
