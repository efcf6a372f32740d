"""`clusterctl notify`: send the notifications configured in the runs' [notify]."""

from __future__ import annotations

import time

import click

from clusterctl.api.find import query
from clusterctl.api.notify import Outcome, notify_about
from clusterctl.cli.options import cluster_option, warn_of
from clusterctl.display.plain import plain

WATCH_SECONDS = 60.0


@click.command(short_help="Send notifications about runs")
@click.argument("names", metavar="[RUN]...", nargs=-1)
@click.option("-w", "--watch", is_flag=True, help="Check every minute until Ctrl-C.")
@cluster_option
def notify(names: tuple[str, ...], watch: bool, cluster: str | None) -> int:
    """Send pending notifications about RUNs, or about all runs, as configured in [notify].

    A run sends its own notifications when it finishes, fails, restarts or stalls. This command adds those that a run
    cannot send, such as for a lost node, and retries failed deliveries. No message is sent twice. Run it from cron, or
    leave it running with --watch. The exit code is 1 if a message could not be sent.

    \b
    Examples:
      clusterctl notify
      clusterctl notify --watch
    """
    wanted = query(names, cluster=cluster)
    while True:
        found = notify_about(wanted)
        warn_of(found.problems)
        for one in found.tries:
            line = f"{one.delivery.outcome}: {one.run} {one.what.event} ({one.channel})"
            click.echo(plain(f"{line}: {one.delivery.reason}" if one.delivery.reason else line))
        if not watch:
            return int(any(one.delivery.outcome is not Outcome.SENT for one in found.tries))
        time.sleep(WATCH_SECONDS)
