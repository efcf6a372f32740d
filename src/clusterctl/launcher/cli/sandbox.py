"""`clusterctl sandbox`: a real Slurm on this machine."""

from __future__ import annotations

import re
import time
from importlib.util import find_spec
from typing import Any

import click

from clusterctl.launcher.api import json_output
from clusterctl.launcher.api import sandbox as api
from clusterctl.launcher.cli.options import echo_json, output_option
from clusterctl.shared.spec.values import TYPED_GPUS, GpuCount, plural

MOST_NODES = 200  # node addresses end in the node's number
MOST_GPUS = 64


@click.group(short_help="Start a real Slurm on this machine")
def sandbox() -> None:
    """Start and stop a real Slurm on this machine, from the installed packages.

    \b
    Examples:
      clusterctl sandbox up
      clusterctl submit cora --cluster sandbox --follow
      clusterctl sandbox down
    """


@sandbox.command(short_help="Start the sandbox")
@click.option(
    "--nodes", metavar="N", type=click.IntRange(1, MOST_NODES), default=4, help="Number of nodes; default: 4."
)
@click.option(
    "--gpus-per-node",
    metavar="N",
    callback=lambda _context, _option, value: _gpus(value),
    default="0",
    help="GPUs per node, such as 4 or a100:4; emulated if there are none.",
)
@click.option("--accounting/--no-accounting", help="Record past jobs in a database, for sacct.")
@click.option("--cgroups/--no-cgroups", help="Confine tasks to their GPUs and memory.")
@click.option(
    "--kill-wait",
    metavar="SECONDS",
    type=click.IntRange(min=0),
    default=30,
    help="Time between SIGTERM and SIGKILL; default: 30.",
)
def up(**request: Any) -> None:
    """Start a real Slurm with partitions main, preemptable and urgent.

    As root, every node gets its own host name, network and process ids; otherwise all nodes share this host's.

    \b
    Examples:
      clusterctl sandbox up
      clusterctl sandbox up --nodes 2 --gpus-per-node 4 --accounting
    """
    began = time.monotonic()
    found, started = api.up(api.SandboxRequest(**request))
    described = _described(found)
    took = f"{time.monotonic() - began:.1f} s"
    click.echo(f"{described}, up in {took}" if started else f"already up: {described}", err=True)
    if find_spec("torch"):
        click.echo("next: clusterctl submit cora --cluster sandbox --follow", err=True)
    else:  # a plain installation, without what the built-in trainings need
        click.echo("next: clusterctl submit --nodes 2 --cluster sandbox --follow -- hostname", err=True)
    click.echo(f"      export SLURM_CONF={found.slurm_conf}", err=True)


@sandbox.command(short_help="Stop the sandbox")
def down() -> None:
    """Stop the sandbox and everything on it immediately; only the runs are kept.

    \b
    Example:
      clusterctl sandbox down
    """
    click.echo("down" if api.down() else "no sandbox is running", err=True)


@sandbox.command(short_help="Show the sandbox's nodes and daemons")
@output_option
def status(output: str) -> None:
    """Show the sandbox's nodes and any daemons that are not running.

    \b
    Example:
      clusterctl sandbox status
    """
    found = api.status()
    if output == "json":
        echo_json(json_output.sandbox(found))
    elif found.sandbox is None:
        click.echo("no sandbox is running; try: clusterctl sandbox up", err=True)
    else:
        click.echo(_described(found.sandbox))
        for name in found.missing:
            click.echo(f"not running: {name}; try: clusterctl sandbox up")
        for name in found.sandbox.names:
            click.echo(f"{name:<8} {found.nodes.get(name, 'unknown')}")


@sandbox.command(short_help="Power a node on or off, or disconnect it from the network")
@click.argument("action", type=click.Choice(list(api.NODE_COMMANDS)))
@click.argument("name")
def node(action: str, name: str) -> None:
    """Power node NAME on or off, disconnect it from the network (cut), or reconnect it (join).

    Powering off kills everything on the node at once, and Slurm notices within half a minute. The tasks of a
    disconnected node keep running.

    \b
    Examples:
      clusterctl sandbox node off node2
      clusterctl sandbox node on node2
    """
    api.switch(action, name)


def _gpus(text: str) -> GpuCount:
    if not re.fullmatch(rf"[0-9]{{1,2}}|{TYPED_GPUS}", text) or GpuCount(text) > MOST_GPUS:
        raise click.BadParameter(f"not a number up to {MOST_GPUS}, or a type and number such as a100:4: {text}")
    return GpuCount(text)


def _described(sandbox: api.Sandbox) -> str:
    request = sandbox.request
    parts = [
        plural(request.nodes, "node"),
        f"{request.gpus_per_node.in_words} per node" if request.gpus_per_node else "",
    ]
    parts += ["accounting" if request.accounting else "", "cgroups" if request.cgroups else ""]
    parts += ["" if sandbox.namespaces else "all on this host's network"]
    return f"sandbox: {', '.join(filter(None, parts))}"
