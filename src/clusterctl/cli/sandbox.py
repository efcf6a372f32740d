"""`clusterctl sandbox`: a real Slurm on this machine."""

from __future__ import annotations

import re
import time
from typing import Any

import click

from clusterctl.api import sandbox as api
from clusterctl.cli.options import echo_json, output_option
from clusterctl.spec.values import TYPED_GPUS, GpuCount, plural

MOST_NODES = 200  # addresses end in the node's number
MOST_GPUS = 64


@click.group(short_help="Start a real Slurm on this machine")
def sandbox() -> None:
    """Start a real Slurm on this machine, from the installed packages, and end it again.

    \b
    Examples:
      clusterctl sandbox up
      clusterctl submit cora --cluster sandbox --follow
      clusterctl sandbox down
    """


@sandbox.command(short_help="Start it")
@click.option("--nodes", metavar="N", type=click.IntRange(1, MOST_NODES), default=4, help="Nodes; default: 4.")
@click.option(
    "--gpus-per-node",
    metavar="N",
    callback=lambda _context, _option, value: _gpus(value),
    default="0",
    help="GPUs a node, such as 4 or a100:4, made up if need be.",
)
@click.option("--accounting/--no-accounting", help="Keep the record of past jobs (sacct), in a database.")
@click.option("--cgroups/--no-cgroups", help="Confine tasks to their GPUs and memory.")
@click.option(
    "--kill-wait", metavar="SECONDS", type=click.IntRange(min=0), default=30, help="From TERM to KILL; default: 30."
)
def up(**request: Any) -> None:
    """Start a real Slurm with partitions main, preemptable and urgent.

    As root every node gets a host name, network and process numbers of its own; else all share this host's.

    \b
    Examples:
      clusterctl sandbox up
      clusterctl sandbox up --nodes 2 --gpus-per-node 4 --accounting
    """
    began = time.monotonic()
    found, started = api.up(api.SandboxRequest(**request))
    described = _described(found)
    took = f"{time.monotonic() - began:.1f} s"
    click.echo(f"{described}, up in {took}" if started else f"up already: {described}", err=True)
    click.echo("next: clusterctl submit cora --cluster sandbox --follow", err=True)
    click.echo(f"      export SLURM_CONF={found.slurm_conf}", err=True)


@sandbox.command(short_help="End it")
def down() -> None:
    """End the sandbox and everything on it, at once; nothing of it is kept but the runs.

    \b
    Example:
      clusterctl sandbox down
    """
    click.echo("down" if api.down() else "no sandbox was up", err=True)


@sandbox.command(short_help="Show what of it runs")
@output_option
def status(output: str) -> None:
    """Show the nodes of the sandbox, and which of its daemons are missing.

    \b
    Example:
      clusterctl sandbox status
    """
    found = api.status()
    if output == "json":
        echo_json(api.record(found))
    elif found.sandbox is None:
        click.echo("no sandbox is up; try: clusterctl sandbox up", err=True)
    else:
        click.echo(_described(found.sandbox))
        for name in found.missing:
            click.echo(f"not running: {name}; try: clusterctl sandbox up")
        for name in found.sandbox.names:
            click.echo(f"{name:<8} {found.nodes.get(name, 'unknown')}")


@sandbox.command(short_help="Switch a node on or off, cut it off the network, join it again")
@click.argument("action", type=click.Choice(list(api.NODE_COMMANDS)))
@click.argument("name")
def node(action: str, name: str) -> None:
    """Switch node NAME on or off, cut it off the network, or join it again.

    Off takes the power: everything on it dies at once, and Slurm notices within half a minute. Cut off, its tasks
    go on.

    \b
    Examples:
      clusterctl sandbox node off node2
      clusterctl sandbox node on node2
    """
    api.switch(action, name)


def _gpus(text: str) -> GpuCount:
    if not re.fullmatch(rf"[0-9]{{1,2}}|{TYPED_GPUS}", text) or GpuCount(text) > MOST_GPUS:
        raise click.BadParameter(f"not a number up to {MOST_GPUS}, or one with a type such as a100:4: {text}")
    return GpuCount(text)


def _described(sandbox: api.Sandbox) -> str:
    request = sandbox.request
    parts = [
        plural(request.nodes, "node"),
        f"{request.gpus_per_node.in_words} a node" if request.gpus_per_node else "",
    ]
    parts += ["accounting" if request.accounting else "", "cgroups" if request.cgroups else ""]
    parts += ["" if sandbox.namespaces else "all on this host's own network"]
    return f"sandbox: {', '.join(filter(None, parts))}"
