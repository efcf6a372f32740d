"""`clusterctl report`: one HTML file about a run."""

from __future__ import annotations

from pathlib import Path

import click

from clusterctl.api.find import find
from clusterctl.cli.options import cluster_option, warn_of
from clusterctl.errors import UsageError


@click.command(short_help="Write one HTML file about a run")
@click.argument("name", metavar="RUN")
@click.option("--output", metavar="FILE", help="Where to; default: report.html in the run directory; -: stdout.")
@cluster_option
def report(name: str, output: str | None, cluster: str | None) -> None:
    """Write one HTML file about RUN, which has ended or goes on: curves, phases, nodes, efficiency, configuration.

    The file needs nothing else, no network either: it can be sent, kept and printed.

    \b
    Examples:
      clusterctl report cora
      clusterctl report @last --output cora.html
    """
    from clusterctl.display.report.page import examine, page, write_text

    run = find(name, cluster)
    path = run.directory.report if output is None else Path(output)
    if output != "-" and not path.parent.is_dir():
        raise UsageError(f"no such folder: {path.parent}", f"mkdir -p '{path.parent}'")
    if output != "-" and path.is_dir():
        raise UsageError(f"is a folder: {path}", f"--output '{path / 'report.html'}'")
    examined = examine(run.directory, path.parent.resolve())
    warn_of(examined.problems)
    text = page(examined)
    if output == "-":
        click.echo(text, nl=False)
        return
    if output is not None and path.exists() and not path.is_file():  # a device or a pipe is not to be replaced
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
    else:
        write_text(path, text)
    click.echo(path)
