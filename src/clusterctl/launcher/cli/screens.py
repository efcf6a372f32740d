"""`clusterctl monitor`, `report`, `dashboard`: runs in the terminal, as a page, and in a browser."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from clusterctl.launcher.api.export import check_output
from clusterctl.launcher.api.find import find, query
from clusterctl.launcher.api.find import overview as overview_of
from clusterctl.launcher.api.remote.operations import client_data
from clusterctl.launcher.api.sweeps import sweep_meant
from clusterctl.launcher.cli.options import CTRL_C, cluster_option, warn_of
from clusterctl.launcher.cli.remote import remotely
from clusterctl.shared.errors import UsageError

# `clusterctl report`: an HTML report on a run, a sweep, or several runs.


@click.command(short_help="Write an HTML report on runs or a sweep")
@click.argument("names", metavar="RUN|SWEEP...", nargs=-1, required=True)
@click.option(
    "--metric",
    metavar="NAME",
    help="Metric to rank several runs by; default: validation score, else test score, else loss.",
)
@click.option(
    "--output", metavar="FILE", help="Output file; default: report.html in the run's or sweep's directory; -: stdout."
)
@cluster_option
@remotely(output=".html")
def report(names: tuple[str, ...], metric: str | None, output: str | None, cluster: str | None) -> None:
    """Write an HTML report on RUN, finished or still running: curves, phases, nodes, efficiency, configuration.

    For a SWEEP or several RUNs: the best run, the effect of the settings, overlaid curves, a sortable table.

    The file is self-contained and needs no network: it can be sent, archived and printed.

    \b
    Examples:
      clusterctl report cora
      clusterctl report @last --output cora.html
      clusterctl report cora-20260102 @last --output both.html
      clusterctl report cora-20260131-120000-1a2b --metric val_accuracy
    """
    sweep = sweep_meant(names[0], cluster) if len(names) == 1 else None
    runs = [] if sweep else [find(name, cluster) for name in names]
    if twice := next((run for run in runs if runs.count(run) > 1), None):
        raise UsageError(f"run named twice: {twice.id}", "name each run once")
    if len(runs) == 1 and metric is not None:
        raise UsageError("--metric needs several runs", "leave it out, or name more runs")
    if len(runs) > 1 and output is None:
        raise UsageError("a report on several runs needs --output", "for example --output report.html")
    path = Path(output) if output is not None else (sweep or runs[0]).directory.report
    if output != "-":
        check_output(path, "report.html")
    from clusterctl.launcher.display.report.markup import write_text

    if sweep or len(runs) > 1:
        from clusterctl.launcher.display.report import several

        directories = [run.directory for run in runs]
        group = several.examine_sweep(sweep.directory, metric) if sweep else several.examine_runs(directories, metric)
        problems, text = group.problems, several.page(group)
    else:
        from clusterctl.launcher.display.report.page import examine, page

        examined = examine(runs[0].directory, path.parent.resolve())
        problems, text = examined.problems, page(examined)
    warn_of(problems)
    if output == "-":
        click.echo(text, nl=False)
        return
    if output is not None and path.exists() and not path.is_file():  # a device or a pipe must not be replaced
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
    else:
        write_text(path, text)
    click.echo(path)


@click.command(short_help="Show runs in a browser")
@click.option("--port", metavar="N", type=click.IntRange(1, 65535), help="Port to listen on; default: a free one.")
@click.option(
    "-n", "count", metavar="N", type=click.IntRange(min=1), default=500, help="Show the newest N runs; default: 500."
)
@cluster_option
@remotely(port=True, watch="always")
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
    from clusterctl.launcher.display.dashboard.application import Addresses, serve
    from clusterctl.launcher.display.dashboard.data import DashboardData

    wanted = query(cluster=cluster, count=count)

    def announce(addresses: Addresses) -> None:
        click.echo(addresses.url)
        if not client_data():  # otherwise the client forwards the port
            click.echo(f"from another machine, first run: {addresses.forward}\n{CTRL_C}", err=True)

    serve(DashboardData(wanted.folder, wanted.look), port or 0, announce)


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
