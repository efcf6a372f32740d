"""`clusterctl mcp`: serve the operations to coding agents."""

from __future__ import annotations

import math
import sys

import click

from clusterctl.launcher.api.agents.plans import ACTIONS, Limits, Plans
from clusterctl.launcher.cli.options import CTRL_C
from clusterctl.launcher.cli.remote import remotely
from clusterctl.shared.errors import UsageError


@click.command(short_help="Let coding agents read runs, and submit if you allow it")
@click.option(
    "--allow", metavar="ACTIONS", default="", help="What agents may do besides reading: submit,cancel,resume."
)
@click.option(
    "--max-nodes", metavar="N", type=click.IntRange(min=1), default=4, help="Most nodes of one submission; default: 4."
)
@click.option(
    "--max-node-hours",
    metavar="HOURS",
    type=click.FloatRange(min=0),
    default=100.0,
    help="Most node-hours that agents may submit in 24 hours; default: 100.",
)
@click.option("--skill", is_flag=True, help="Print a SKILL.md for agents and exit.")
@click.option("--cluster", metavar="NAME", help="Cluster that the tools use by default.")
@remotely(here=True)
def mcp(allow: str, max_nodes: int, max_node_hours: float, skill: bool, cluster: str | None) -> None:
    """Serve runs to a coding agent by the Model Context Protocol, on stdin and stdout. Start it in your project.

    Agents can read: runs, why, logs, metrics, nodes, differences, settings. With --allow, they can also submit, resume
    and cancel, each in two steps: a plan that shows what would happen, and a call that carries it out, before which
    clients that can ask you do so. The node-hours are counted over restarts of the server.

    \b
    Examples:
      clusterctl mcp
      clusterctl mcp --allow submit,resume --max-nodes 2 --max-node-hours 20
      clusterctl mcp --skill > SKILL.md
    """
    if skill:
        from clusterctl.launcher.api.agents.skill import skill_text

        click.echo(skill_text(), nl=False)
        return
    actions = frozenset(filter(None, (word.strip() for word in allow.split(","))))
    if unknown := sorted(actions - {*ACTIONS}):
        raise UsageError(f"--allow {unknown[0]}: not an action", f"any of {','.join(ACTIONS)}")
    if math.isnan(max_node_hours):
        raise UsageError("--max-node-hours nan: not a number", "for example --max-node-hours 20")
    try:
        from clusterctl.launcher.api.agents.server import serve
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types", "anyio"):
            raise
        raise UsageError("mcp needs the Python package mcp", "pip install 'mcp>=2.3'") from None
    if sys.stdin.isatty():
        click.echo("waiting for a client on stdin; an agent's program starts it: docs/guides/agents.md", err=True)
        click.echo(CTRL_C, err=True)
    serve(Plans(actions, Limits(max_nodes, max_node_hours)), cluster)
