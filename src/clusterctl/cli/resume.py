"""`clusterctl resume`: start a run again that ended before it was finished."""

from __future__ import annotations

import click

from clusterctl.cli import options


@click.command(short_help="Start a run again that ended before it was finished")
@click.argument("name", metavar="RUN")
@click.option("--cluster", metavar="NAME", help="Where to run now; default: where it ran before.")
@options.resource_options
@options.waiting_options
def resume(
    name: str,
    cluster: str | None,
    settings: tuple[str, ...],
    hold: bool,
    follow: bool,
    wait: bool,
    timeout: float | None,
    **shortcuts: str | None,
) -> None:
    """Start RUN again, which failed, timed out, was cancelled, preempted or lost, from its last checkpoint.

    It is the same run with the same code, and a further attempt; resources and most of what it trains with may be
    changed. Secrets are in no file: have them in your environment, as when you submitted it.

    \b
    Examples:
      clusterctl resume cora --follow
      clusterctl resume @last --nodes 4 --time 8h
    """
    from clusterctl.api.find import find
    from clusterctl.api.resume import resume as start_again
    from clusterctl.display.build_progress import shown

    options.check_waiting(hold, follow, wait, timeout)
    changes = options.typed_settings(settings, shortcuts)
    with shown() as progress:
        run = start_again(find(name, cluster), cluster, overrides=changes, hold=hold, progress=progress)
    options.show_batches(run.batches)
    options.warn_of(run.warnings)
    click.echo(run.id)
    if not (follow or wait):
        options.echo_next(run, f"attempt {len(run.directory.attempts())}", hold=hold)
    options.await_end(run, follow, wait, timeout)
