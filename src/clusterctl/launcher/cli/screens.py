"""`clusterctl monitor`, `report`, `dashboard`: runs in the terminal, as a page, and in a browser."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import click

from clusterctl.launcher.api.export import check_output
from clusterctl.launcher.api.find import find, query
from clusterctl.launcher.api.find import overview as overview_of
from clusterctl.launcher.api.remote.operations import client_data
from clusterctl.launcher.api.run import Run
from clusterctl.launcher.cli.options import CTRL_C, browser, cluster_option, warn_of
from clusterctl.launcher.cli.remote import remotely
from clusterctl.shared.errors import ClusterctlError, UsageError

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
@click.option("--open", "opened", is_flag=True, help="Open it in the browser of this machine.")
@cluster_option
@remotely(output=".html", opens="opened")
def report(names: tuple[str, ...], metric: str | None, output: str | None, opened: bool, cluster: str | None) -> None:
    """Write an HTML report on RUN, finished or still running: curves, phases, nodes, efficiency, configuration.

    For a SWEEP or many RUNs: the best run, the effect of the settings, overlaid curves, a sortable table. For up to
    four RUNs: first what differs.

    The file is self-contained and needs no network: it can be sent, archived and printed.

    \b
    Examples:
      clusterctl report cora --open
      clusterctl report @last --output cora.html
      clusterctl report cora-20260102 @last --output both.html
      clusterctl report cora-20260131-120000-1a2b --metric val_accuracy
    """
    if opened and output == "-":
        raise UsageError("--open needs a file", "leave out --output -")
    start = browser() if opened else None
    from clusterctl.launcher.display.report import page
    from clusterctl.launcher.display.report.markup import write_text

    several = len(names) > 1
    named = [find(name, cluster) if several else page.find_sweep_or_run(name, cluster) for name in names]
    written = page.render(named, metric, None if output is None else Path(output))
    if output != "-":
        check_output(written.path, "report.html")
    warn_of(written.problems)
    if output == "-":
        click.echo(written.text, nl=False)
        return
    if output is not None and written.path.exists() and not written.path.is_file():
        # A device or a pipe must not be replaced.
        written.path.write_text(written.text, encoding="utf-8", errors="surrogateescape")
    else:
        write_text(written.path, written.text)
    click.echo(written.path)
    if start:
        start(written.path)


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
    from clusterctl.launcher.display.dashboard.application import Addresses, DashboardData, serve

    wanted = query(cluster=cluster, count=count)

    def announce(addresses: Addresses) -> None:
        if client := client_data():  # it forwards the port; the answer is not awaited, since it looks whether we answer
            client.ask({"dashboard": addresses._asdict()})
        else:
            click.echo(addresses.url)
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
        from clusterctl.launcher.display.explanation import Causes, explanation
        from clusterctl.launcher.display.monitor.panes import MonitorView, frame

        scene = overview.look()
        scene = replace(scene, causes=Causes(overview.folder).of(scene.statuses))
        if not scene.statuses and scene.problems:
            raise scene.problems[0]
        console = terminal.data()
        width, height = console.size if console.is_terminal else terminal.FRAME_OF_FILES
        findings: list[str] = []
        if scene.selected:
            try:
                findings = explanation(Run(scene.selected.status.record.run.path).why())
            except ClusterctlError as error:
                findings = error.text.splitlines()
        console.print(frame(MonitorView(scene, tuple(findings)), min(width, console.width), height), soft_wrap=True)
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM", "dumb") == "dumb":
        raise UsageError("monitor needs a terminal", "for one frame: clusterctl monitor --once")
    from clusterctl.launcher.display.monitor.app import Actions, Monitor  # textual is only needed here

    Monitor(overview, Actions(), every).run()
