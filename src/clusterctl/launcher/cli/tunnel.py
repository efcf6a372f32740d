"""`clusterctl tunnel`: a port of a rank's node on this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from clusterctl.launcher.api.find import find, living
from clusterctl.launcher.api.remote.operations import client_data
from clusterctl.launcher.api.tunnel import ListeningEnd, open_tunnel, parse_ports, tunnel_step
from clusterctl.launcher.cli.options import CTRL_C, cluster_option, warn
from clusterctl.launcher.cli.remote import remotely

if TYPE_CHECKING:
    from collections.abc import Mapping


def listening_end(values: Mapping[str, Any]) -> ListeningEnd:
    """The end of a tunnel on this machine, which prints its address once it is connected."""
    from clusterctl.launcher.display.plain import plain

    ports, rank = parse_ports(values["ports"]), values["rank"]

    def announce(node: str, problem: str) -> None:
        click.echo(f"127.0.0.1:{ports.here}")
        click.echo(f"connected to port {ports.there} on {plain(node)}, {ports.label(rank)}; {CTRL_C}", err=True)
        if problem:
            warn(f"{problem} yet" if problem.startswith("nothing") else problem)

    return ListeningEnd(ports.here, announce, warn)


@click.command(short_help="Connect to a port on a rank's node")
@click.argument("name", metavar="RUN")
@click.argument("ports", metavar="[ROLE:]PORT[:LOCAL]")
@click.option(
    "--rank", metavar="N", type=click.IntRange(min=0), default=0, help="Rank on the node, of ROLE if given; default: 0."
)
@cluster_option
@remotely(session=True, tunnel=listening_end)
def tunnel(name: str, ports: str, rank: int, cluster: str | None) -> None:
    """Connect port LOCAL of this machine to PORT on the node of a rank of RUN, until the rank ends or Ctrl-C.

    Only a PORT on which a program of RUN listens can be reached. This machine listens on its loopback interface, and
    other users cannot connect there. The connections pass through a step of RUN's job, and over ssh if the cluster file
    has a host, where they need no port on the login node.

    \b
    Examples:
      clusterctl tunnel @last 8888
      clusterctl tunnel cora 6006:16006 --rank 3
      clusterctl tunnel @last server:8000
    """
    wanted, run = parse_ports(ports), find(living(name, cluster), cluster)
    place = run.rank_of(wanted.role, rank)
    if not client_data():
        end = listening_end({"ports": ports, "rank": rank})
        open_tunnel(end, run, place, wanted.there)
        click.echo(f"the tunnel ended: {end.ended}", err=True)
        return
    # The other end is on the machine where the command was typed: it has this process's input and output.
    argv, environment = tunnel_step(run, place, wanted.there)
    os.execve(argv[0], argv, environment)
