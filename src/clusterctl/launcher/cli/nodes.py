"""`clusterctl nodes`, `alloc`, `attach`, `tunnel`: free resources, held nodes, and access to the nodes of a rank."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from clusterctl.launcher.api import json_output
from clusterctl.launcher.api.find import find, living
from clusterctl.launcher.api.nodes import allocate, beside, fit, give_back, wait_for_nodes
from clusterctl.launcher.api.nodes import nodes as nodes_of
from clusterctl.launcher.api.remote.operations import client_data
from clusterctl.launcher.cli.options import (
    CTRL_C,
    cluster_option,
    echo_json,
    output_option,
    shorthand,
    typed_settings,
    warn,
    with_flags,
)
from clusterctl.launcher.cli.remote import remotely
from clusterctl.shared.errors import SlurmError, UsageError
from clusterctl.shared.spec.values import plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from clusterctl.launcher.api.tunnel import ListeningEnd


# `clusterctl alloc`: reserve nodes for warm runs.


@click.command(short_help="Reserve nodes to start runs on them in seconds")
@click.argument("job", required=False)
@click.option("--cluster", metavar="NAME", help="Cluster; default: as in submit.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Override any setting, as in submit.")
@shorthand("--nodes", key="resources.nodes", metavar="N", help="Number of nodes.")
@shorthand("--gpus-per-node", key="resources.gpus_per_node", metavar="N", help="GPUs per node; default: the cluster's.")
@shorthand("--tasks-per-node", key="resources.tasks_per_node", metavar="N", help="Maximum number of tasks per node.")
@shorthand("--time", key="resources.time", metavar="TIME", help="How long to hold them: 90 (minutes), 4h, 1-00:00:00.")
@shorthand("--partition", key="resources.partition", metavar="NAME", help="Slurm partition.")
@shorthand("--account", key="resources.account", metavar="NAME", help="Slurm account.")
@shorthand("--qos", key="resources.qos", metavar="NAME", help="Slurm quality of service.")
@click.option("--no-wait", is_flag=True, help="Do not wait for the nodes.")
@click.option("--end", metavar="JOBID", help="Give back the nodes of JOBID and remove imported images from them.")
@remotely(changes=True, job="job")
def alloc(
    job: str | None,
    cluster: str | None,
    settings: tuple[str, ...],
    no_wait: bool,
    end: str | None,
    **shortcuts: str | None,
) -> None:
    """Reserve the nodes that JOB or the options request, and print the allocation's number.

    Runs start on them without queueing: clusterctl submit JOB --in-allocation NUMBER. The nodes are held until the time
    limit or --end.

    \b
    Examples:
      clusterctl alloc cora --time 2h
      clusterctl alloc --nodes 2 --gpus-per-node 8 --time 4h
      clusterctl alloc --end 12345
    """
    typed = typed_settings({"settings": settings, **shortcuts})
    if end:
        if job or typed:
            raise UsageError("--end cannot be combined with JOB or resource options", f"clusterctl alloc --end {end}")
        give_back(end, cluster)
        click.echo(f"gave back {end}", err=True)
        return
    number = allocate(job, cluster, overrides=typed)
    click.echo(number)
    if no_wait:
        click.echo(with_flags(f"queued; check with: squeue --me -j {number}"), err=True)
        return
    try:
        held = wait_for_nodes(number, cluster)
    except KeyboardInterrupt:
        warn(f"allocation {number} is still queued", f"cancel it with: clusterctl alloc --end {number}")
        raise
    next_ = f"clusterctl submit {job or 'JOB'} --in-allocation {number} --follow"
    steps = with_flags(f"next: {next_}\n      clusterctl alloc --end {number}")
    click.echo(f"{plural(held.nodes, 'node')} held: {held.node_list}\n{steps}", err=True)


# `clusterctl attach`: a shell next to a rank.


@click.command(short_help="Open a shell next to a rank of a run")
@click.argument("name", metavar="RUN")
@click.argument("command", nargs=-1)
@click.option(
    "--rank",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    help="Rank to attach to, of ROLE if given; default: 0.",
)
@click.option("--role", metavar="ROLE", help="Role of the rank, in a job with several programs.")
@cluster_option
@remotely(session=True)
def attach(name: str, command: tuple[str, ...], rank: int, role: str | None, cluster: str | None) -> NoReturn:
    """Open a shell next to a rank of RUN: on its node, in its container, with its environment. RUN keeps running.

    With a COMMAND after `--`, run that instead.

    \b
    Examples:
      clusterctl attach @last
      clusterctl attach cora --rank 3 -- nvidia-smi
    """
    at_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if not command and not at_terminal:
        raise UsageError("an interactive shell needs a terminal", f"clusterctl attach {name} -- COMMAND")
    run = find(living(name, cluster), cluster)
    argv, environment = beside(run.directory, run.rank_of(role, rank), command, terminal=at_terminal)
    sys.stdout.flush()
    try:
        os.execve(argv[0], argv, environment)  # so that srun has the terminal and its signals
    except OSError as error:
        raise SlurmError(f"cannot run srun: {error.strerror}", "try it by hand: srun --version") from error


@click.command(short_help="Show free resources and where a job would fit")
@click.option("--cluster", metavar="NAME", help="Cluster to query; default: as in submit.")
@click.option("--for", "job", metavar="JOB", help="Show where and when JOB would fit, without submitting it.")
@click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True, help="With --for: override a setting, as in submit."
)
@output_option
@remotely(job="job")
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
        if job:
            echo_json(json_output.fit(fit(job, cluster, overrides=settings)))
        else:
            echo_json(json_output.nodes(nodes_of(cluster), cluster))
        return
    from clusterctl.launcher.display import tables, terminal
    from clusterctl.launcher.display.plain import plain_lines

    console = terminal.data()
    if job:
        found = fit(job, cluster, overrides=settings)
        tables.show_room(console, found.rooms)
        console.print()
        click.echo(plain_lines(with_flags(tables.verdict(found.answer))))
    else:
        inventory = nodes_of(cluster)
        tables.show_partitions(console, inventory)
        console.print()
        tables.show_nodes(console, inventory.nodes.values())


def listening_end(values: Mapping[str, Any]) -> ListeningEnd:
    """The end of a tunnel on this machine, which prints its address once it is connected."""
    from clusterctl.launcher.api.tunnel import ListeningEnd, parse_ports  # sockets: for this command alone
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
    from clusterctl.launcher.api.tunnel import open_tunnel, parse_ports, tunnel_step

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
