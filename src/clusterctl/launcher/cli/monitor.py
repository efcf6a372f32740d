"""`clusterctl monitor`: runs, training, devices, logs and the queue in the terminal."""

from __future__ import annotations

import os
import sys

import click

from clusterctl.launcher.api.find import overview as overview_of
from clusterctl.launcher.cli.options import cluster_option
from clusterctl.launcher.cli.remote import remotely
from clusterctl.shared.errors import UsageError


@click.command(short_help="Watch runs: curves, GPUs, logs, the queue")
@click.argument("names", metavar="[RUN]...", nargs=-1)
@click.option("--once", is_flag=True, help="Print one frame and exit; needs no terminal.")
@click.option(
    "--every", metavar="SECONDS", type=click.FloatRange(min=0.5), default=2.0, help="Refresh interval; default: 2."
)
@click.option(
    "-n", "count", metavar="N", type=click.IntRange(min=1), default=100, help="Show the newest N runs; default: 100."
)
@cluster_option
@remotely(watch="always", screen=True)
def monitor(names: tuple[str, ...], once: bool, every: float, count: int, cluster: str | None) -> None:
    """Watch RUNs, or the newest runs: curves, nodes and GPUs, logs, events, the queue.

    Reads the runs' files and polls Slurm no more often than the cluster file allows. Quitting does not affect the runs.

    \b
    Examples:
      clusterctl monitor
      clusterctl monitor @last --once
    """
    overview = overview_of(names, cluster, count)
    if once:
        from clusterctl.launcher.display import terminal
        from clusterctl.launcher.display.monitor.panes import MonitorView, frame

        scene = overview.look()
        if not scene.statuses and scene.problems:
            raise scene.problems[0]
        console = terminal.data()
        height = console.height if console.is_terminal else terminal.LINES_OF_FILES
        console.print(frame(MonitorView(scene), console.width, height), soft_wrap=True)
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        raise UsageError("monitor needs a terminal", "for one frame: clusterctl monitor --once")
    from clusterctl.launcher.display.monitor.app import Actions, Monitor  # textual is only needed here

    Monitor(overview, Actions(), every).run()
