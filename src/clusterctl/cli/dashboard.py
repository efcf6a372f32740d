"""`clusterctl dashboard`: the runs in a browser."""

from __future__ import annotations

import click

from clusterctl.api.find import query
from clusterctl.api.served import delivered
from clusterctl.cli.options import cluster_option

CTRL_C = "Ctrl-C ends it"


@click.command(short_help="Show runs in a browser")
@click.option("--port", metavar="N", type=click.IntRange(1, 65535), help="Listen at this port; default: a free one.")
@click.option("-n", "count", metavar="N", type=click.IntRange(min=1), default=500, help="The newest N; default: 500.")
@cluster_option
def dashboard(port: int | None, count: int, cluster: str | None) -> None:
    """Show the newest runs in a browser: curves, nodes, logs, why; until Ctrl-C.

    It listens on this machine's loopback alone and prints the address to open, with a token that keeps other users of
    this machine out, and the ssh command that brings it to the machine in front of you. Where the cluster's file has a
    host, it runs there and its port is brought here. It only reads.

    \b
    Examples:
      clusterctl dashboard
      clusterctl dashboard --port 8123
    """
    from clusterctl.display.dashboard.glances import Glances
    from clusterctl.display.dashboard.serve import Addresses, serve

    wanted = query(cluster=cluster, count=count)

    def announce(addresses: Addresses) -> None:
        click.echo(addresses.url)
        if not delivered():  # else the machine where it was typed forwards the port itself
            click.echo(f"from another machine, first: {addresses.forward}\n{CTRL_C}", err=True)

    serve(Glances(wanted.folder, wanted.look), port or 0, announce)
