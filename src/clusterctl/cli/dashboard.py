"""`clusterctl dashboard`: show runs in a browser."""

from __future__ import annotations

import click

from clusterctl.api.find import query
from clusterctl.api.served import delivered
from clusterctl.cli.options import cluster_option

CTRL_C = "press Ctrl-C to stop"


@click.command(short_help="Show runs in a browser")
@click.option("--port", metavar="N", type=click.IntRange(1, 65535), help="Port to listen on; default: a free one.")
@click.option(
    "-n", "count", metavar="N", type=click.IntRange(min=1), default=500, help="Show the newest N runs; default: 500."
)
@cluster_option
def dashboard(port: int | None, count: int, cluster: str | None) -> None:
    """Show the newest runs in a browser, with curves, nodes, logs and explanations, until Ctrl-C.

    The server listens on the loopback interface only. It prints the address to open, with a token that keeps other
    users out, and the ssh command that forwards the port to your machine. If the cluster file has a host, the server
    runs there and its port is forwarded here. The dashboard is read-only.

    \b
    Examples:
      clusterctl dashboard
      clusterctl dashboard --port 8123
    """
    from clusterctl.display.dashboard.application import Addresses, serve
    from clusterctl.display.dashboard.glances import Glances

    wanted = query(cluster=cluster, count=count)

    def announce(addresses: Addresses) -> None:
        click.echo(addresses.url)
        if not delivered():  # otherwise the client forwards the port
            click.echo(f"from another machine, first run: {addresses.forward}\n{CTRL_C}", err=True)

    serve(Glances(wanted.folder, wanted.look), port or 0, announce)
