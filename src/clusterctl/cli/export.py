"""`clusterctl export`: a run as one archive."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import click

from clusterctl.api.export import export as export_run
from clusterctl.api.find import find
from clusterctl.cli.options import cluster_option, warn_of


@click.command(short_help="Put a run into one archive, to keep or send")
@click.argument("name", metavar="RUN")
@click.option("--output", metavar="FILE", help="Where to; default: RUN.tar.gz here; -: stdout.")
@click.option("--no-weights", is_flag=True, help="Leave the trained weights out.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@cluster_option
def export(name: str, output: str | None, no_weights: bool, force: bool, cluster: str | None) -> None:
    """Put RUN into one archive that can be read without clusterctl: record, metrics, weights, report, logs.

    A README.txt inside says what is what. A run that has not ended is exported as it is now. Secrets are hidden.

    \b
    Examples:
      clusterctl export cora
      clusterctl export @last --no-weights --output cora.tar.gz
    """
    from clusterctl.display.report.page import examine, page

    run = find(name, cluster)
    examined = examine(run.directory, run.path)
    warn_of(examined.problems)
    pages = {"report.html": page(examined)}
    if output != "-":
        click.echo(export_run(run, output, weights=not no_weights, force=force, pages=pages))
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = export_run(run, Path(folder, "archive"), weights=not no_weights, pages=pages)
        with archive.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
