"""`clusterctl cancel`: cancel queued or running runs."""

from __future__ import annotations

import click

from clusterctl.api.cancel import cancel as cancel_all
from clusterctl.api.find import find_all
from clusterctl.cli.options import cluster_option, confirmed, warn_of

_MOST_NAMED = 20


@click.command(short_help="Cancel queued or running runs")
@click.argument("names", metavar="RUN|SWEEP...", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation when cancelling several runs.")
@cluster_option
def cancel(names: tuple[str, ...], yes: bool, cluster: str | None) -> None:
    """Cancel queued or running RUNs, and all runs of a SWEEP. Runs that have already ended are left alone.

    \b
    Examples:
      clusterctl cancel cora
      clusterctl cancel @last
    """

    def agreed(count: int) -> bool:
        return count == 1 or confirmed(f"Cancel {count} runs?", yes=yes)

    done = cancel_all(find_all(names, cluster), agreed)
    warn_of(done.problems)
    if len(done.ended) + len(done.cancelled) > _MOST_NAMED:
        click.echo(f"cancelled {len(done.cancelled)} runs; {len(done.ended)} had already ended", err=True)
        return
    for status in done.ended:
        click.echo(f"{status.record.run.id} has already ended: {status.stage}", err=True)
    for status in done.cancelled:
        click.echo(f"cancelled {status.record.run.id}", err=True)
