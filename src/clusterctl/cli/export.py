"""`clusterctl export`: pack a run into an archive."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from shutil import copyfileobj

import click

from clusterctl.api.find import find
from clusterctl.cli.options import cluster_option, warn_of


@click.command(short_help="Pack a run into an archive")
@click.argument("name", metavar="RUN")
@click.option("--output", metavar="FILE", help="Output file; default: RUN.tar.gz in the current folder; -: stdout.")
@click.option("--no-weights", is_flag=True, help="Leave out the trained weights.")
@click.option("--work", is_flag=True, help="Include the files the program wrote to its working directory.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@cluster_option
def export(name: str, output: str | None, no_weights: bool, work: bool, force: bool, cluster: str | None) -> None:
    """Pack RUN into an archive that can be read without clusterctl: record, metrics, weights, report, logs.

    The README.txt inside describes the files. A run that has not ended is exported in its current state. Secrets are
    redacted.

    \b
    Examples:
      clusterctl export cora
      clusterctl export @last --no-weights --output cora.tar.gz
    """
    from clusterctl.display.report.archive import export_run

    run, weights = find(name, cluster), not no_weights
    if output != "-":
        exported = export_run(run, output, weights=weights, work=work, force=force)
        warn_of(exported.problems)
        click.echo(exported.path)
        return
    with tempfile.TemporaryDirectory() as folder:
        exported = export_run(run, Path(folder, "archive"), weights=weights, work=work, force=force)
        warn_of(exported.problems)
        with exported.path.open("rb") as file:
            copyfileobj(file, sys.stdout.buffer)
