"""`clusterctl clean`: remove copies of code that no run refers to any more."""

from __future__ import annotations

import os

import click

from clusterctl.api.clean import remove_unused, unused_code
from clusterctl.cli.options import cluster_option, confirmed
from clusterctl.display.plain import as_bytes, plain


@click.command(short_help="Remove copies of code that no run needs")
@cluster_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def clean(cluster: str | None, yes: bool) -> None:
    """Remove the copies of code that no run refers to any more, after the directories of their runs were removed.

    They are listed first, with what each takes on the disk. The code of a run whose directory is there stays.

    \b
    Example:
      clusterctl clean
    """
    found = unused_code(cluster)
    if not found:
        click.echo("nothing to remove", err=True)
        return
    for one in found:
        click.echo(plain(f"{as_bytes(one.size):>10}  {os.fspath(one.path)}"))
    if confirmed(f"remove {len(found)}, {as_bytes(sum(one.size for one in found))}?", yes=yes):
        removed = [one for one in found if remove_unused(one)]
        click.echo(f"removed {len(removed)}, {as_bytes(sum(one.size for one in removed))}", err=True)
