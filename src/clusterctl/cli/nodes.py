"""`clusterctl nodes`: show partitions and nodes, and where a job would fit."""

from __future__ import annotations

import click

from clusterctl.api.nodes import fit, fit_record, nodes_record
from clusterctl.api.nodes import nodes as nodes_of
from clusterctl.cli.options import echo_json, output_option
from clusterctl.errors import UsageError


@click.command(short_help="Show what is free, and where a job would fit")
@click.option("--cluster", metavar="NAME", help="The cluster to ask; default: as in submit.")
@click.option("--for", "job", metavar="JOB", help="Say where and when JOB would fit; it is not submitted.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="With --for: change a value, as in submit.")
@output_option
def nodes(cluster: str | None, job: str | None, settings: tuple[str, ...], output: str) -> None:
    """Show the partitions and nodes of a cluster: what is free now, what is drained and why.

    Free is where there is room. Whether you may have it, Slurm alone knows: --for asks it.

    \b
    Examples:
      clusterctl nodes
      clusterctl nodes --for reddit --set resources.nodes=4
    """
    if settings and not job:
        raise UsageError("--set changes a job, and none is named", "clusterctl nodes --for JOB --set KEY=VALUE")
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
