"""`clusterctl attach`: a shell next to a rank."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click

from clusterctl.api.find import find
from clusterctl.api.nodes import beside
from clusterctl.cli.options import cluster_option
from clusterctl.errors import SlurmError, UsageError


@click.command(short_help="Open a shell next to a rank of a run")
@click.argument("name", metavar="RUN")
@click.argument("command", nargs=-1)
@click.option("--rank", metavar="N", type=click.IntRange(min=0), default=0, help="Rank to attach to; default: 0.")
@cluster_option
def attach(name: str, command: tuple[str, ...], rank: int, cluster: str | None) -> NoReturn:
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
    argv, environment = beside(find(name, cluster), rank, command, terminal=at_terminal)
    sys.stdout.flush()
    try:
        os.execve(argv[0], argv, environment)  # so that srun has the terminal and its signals
    except OSError as error:
        raise SlurmError(f"cannot run srun: {error.strerror}", "try it by hand: srun --version") from error
