"""Options and arguments that several commands share."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from clusterctl.config import chosen_runs_folder
from clusterctl.observe.find import find_run

if TYPE_CHECKING:
    from clusterctl.runs.layout import RunDir

cluster_option = click.option("--cluster", metavar="NAME", help="The cluster whose runs are meant.")


def runs_named(names: tuple[str, ...], cluster: str | None) -> list[RunDir]:
    """The runs that were named, each once. Raises NotFoundError and UsageError."""
    folder = chosen_runs_folder(cluster)
    return list(dict.fromkeys(find_run(folder, name) for name in names))


def warn(message: str, hint: str = "") -> None:
    """Something that does not stop the command."""
    from clusterctl.display.plain import plain

    click.echo(f"warning: {plain(message)}", err=True)
    if hint:
        click.echo(f"hint: {plain(hint)}", err=True)


def confirmed(question: str, *, yes: bool) -> bool:
    """Ask at a terminal; elsewhere nobody could answer, and the command was typed as it was meant."""
    return yes or not sys.stdin.isatty() or click.confirm(question, err=True)
