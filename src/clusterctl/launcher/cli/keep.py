"""`clusterctl fetch`, `export`, `usage`, `clean`, `notify`, `track`: what is kept of runs, and where it is copied."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from shutil import copyfileobj
from typing import Any

import click

from clusterctl.launcher.api import clean as api
from clusterctl.launcher.api import json_output
from clusterctl.launcher.api import usage as hours
from clusterctl.launcher.api.fetch import fetch as fetch_run
from clusterctl.launcher.api.find import checkable, find, query
from clusterctl.launcher.api.notify import Outcome, notify_about, points_copied, tracking
from clusterctl.launcher.api.remote.cluster import remote_cluster as place_of
from clusterctl.launcher.cli.options import cluster_option, confirmed, echo_csv, echo_json, output_option, warn_of
from clusterctl.launcher.cli.remote import remotely
from clusterctl.launcher.display.plain import as_bytes, plain
from clusterctl.shared.errors import UsageError

# `clusterctl export`: pack a run into an archive.


@click.command(short_help="Pack a run into an archive")
@click.argument("name", metavar="RUN")
@click.option("--output", metavar="FILE", help="Output file; default: RUN.tar.gz in the current folder; -: stdout.")
@click.option("--no-weights", is_flag=True, help="Leave out the trained weights.")
@click.option("--work", is_flag=True, help="Include the files the program wrote to its working directory.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@cluster_option
@remotely(output=".tar.gz")
def export(name: str, output: str | None, no_weights: bool, work: bool, force: bool, cluster: str | None) -> None:
    """Pack RUN into an archive that can be read without clusterctl: record, metrics, weights, report, logs.

    The README.txt inside describes the files. A run that has not ended is exported in its current state. Secrets are
    redacted.

    \b
    Examples:
      clusterctl export cora
      clusterctl export @last --no-weights --output cora.tar.gz
    """
    from clusterctl.launcher.display.report.page import export_run

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


# `clusterctl clean`: disk usage, and removing what is no longer needed.


@click.command(short_help="Show disk usage and remove old runs")
@click.option("--older-than", metavar="AGE", help="Also remove runs that ended longer ago than this: 8h, 30d; 0d: all.")
@click.option("--keep-best", is_flag=True, help="Keep the best run of each job, by the score shown in `status`.")
@click.option("--checkpoints-only", is_flag=True, help="Remove only the checkpoints of those runs.")
@cluster_option
@output_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@remotely(changes=True, asks=True)
def clean(output: str, yes: bool, **wanted: Any) -> None:
    """Show the disk usage of runs, code, data sets, images and caches, list what can be removed, and ask.

    Code that no run refers to can be removed and, with --older-than, old runs. Queued, held and running runs are kept,
    and so are the runs they wait for, their code, and other users' runs. With -o json, nothing is removed without
    --yes.

    \b
    Examples:
      clusterctl clean
      clusterctl clean --older-than 30d --keep-best
      clusterctl clean --older-than 7d --checkpoints-only --yes
    """
    found = api.clean(**wanted)
    warn_of(found.problems)
    if output == "json":
        done = found.carry_out() if yes else found
        warn_of(done.problems if yes else ())
        from clusterctl.launcher.api import json_output

        echo_json(json_output.clean_up(done, removed=yes))
        return
    from clusterctl.launcher.display import tables, terminal  # rich: for people only

    tables.show_disk(terminal.data(), found)
    if not found.removals:
        click.echo("nothing to remove", err=True)
    elif confirmed(f"remove {_sum(found)}?", yes=yes):
        done = found.carry_out()
        warn_of(done.problems)
        click.echo(f"removed {_sum(done)}", err=True)


def _sum(found: api.CleanUp) -> str:
    return f"{len(found.removals)}, {as_bytes(sum(one.bytes for one in found.removals))}"


# `clusterctl notify`: send the notifications configured in the runs' [notify].


WATCH_SECONDS = 60.0


@click.command(short_help="Send notifications about runs")
@click.argument("names", metavar="[RUN]...", nargs=-1)
@click.option("-w", "--watch", is_flag=True, help="Check every minute until Ctrl-C.")
@cluster_option
@remotely(changes=True, watch="watch")
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


# `clusterctl track`: copy the metrics of a run to TensorBoard, W&B or MLflow.


LOOK_SECONDS = 10.0


@click.command(short_help="Copy the metrics of a run to TensorBoard, W&B or MLflow")
@click.argument("name", metavar="RUN")
@click.option("-f", "--follow", is_flag=True, help="Keep copying until the run ends; Ctrl-C does not affect the run.")
@cluster_option
@remotely(changes=True, watch="follow")
def track(name: str, follow: bool, cluster: str | None) -> int:
    """Copy new metrics of RUN to the trackers configured in its [track].

    A run stays one run in the tracker through all restarts and resumes, and no point is copied twice. The exit code
    is 1 if a tracker could not be reached; the missing points are copied next time.

    \b
    Examples:
      clusterctl track @last
      clusterctl track cora --follow
    """
    with tracking(name, cluster) as mirrored:
        while True:
            for tracker, count in mirrored.update().items():
                if count or not follow:
                    click.echo(points_copied(tracker, count))
            warn_of(mirrored.problems)
            if not follow or (mirrored.ended and not mirrored.problems):
                return int(bool(mirrored.problems))
            time.sleep(LOOK_SECONDS)


@click.command(short_help="Copy a run's files to this machine")
@click.argument("name", metavar="RUN")
@click.option("--output", metavar="FOLDER", help="Output folder; default: RUN in the current folder.")
@click.option("--no-weights", is_flag=True, help="Leave out the trained weights.")
@click.option("--force", is_flag=True, help="Replace FOLDER, which holds an earlier copy.")
@cluster_option
@remotely(here=True)
def fetch(name: str, output: str | None, no_weights: bool, force: bool, cluster: str | None) -> None:
    """Copy RUN from its cluster's login node: record, metrics, report, weights, logs, and the program's files.

    The run stays on the cluster. A README.txt in the folder describes the files.

    \b
    Examples:
      clusterctl fetch cora --cluster far
      clusterctl fetch @last --cluster far --output results
    """
    place = place_of(cluster)
    name = checkable(name, cluster) if place else name
    click.echo(fetch_run(place, name, Path(output) if output else None, weights=not no_weights, force=force))


@click.command(short_help="Show hours used by runs, or what a run needs")
@click.argument("run", required=False)
@click.option("--by", type=click.Choice(["user", "job", "week"]), help="Group rows by this; default: user.")
@click.option("--since", metavar="AGE", help="Count only hours within this time: 8h, 30d; default: all.")
@click.option("-o", "output", type=click.Choice(["table", "json", "csv"]), default="table", help="Output format.")
@cluster_option
def usage(run: str | None, output: str, by: str | None, since: str | None, cluster: str | None) -> None:
    """Show the GPU-hours and CPU-hours of all attempts of the runs in the runs folder, and GPU and CPU utilization.

    REPEATED is the share of time spent repeating steps lost in a failure or restart, SPARE that of spare nodes. The
    hours count requested resources and are read from the run directories: removed runs and other jobs are not included.

    With RUN, show what the run requested of each node, the most it used, and the request that would have been enough,
    with headroom: a quarter more memory and CPUs, half as much time again. The memory is what the kernel could not have
    taken back; cached files do not count.

    \b
    Examples:
      clusterctl usage
      clusterctl usage --by week --since 90d
      clusterctl usage --by job -o csv
      clusterctl usage @last
    """
    if run is not None:
        if given := next((flag for flag, value in (("--by", by), ("--since", since)) if value), None):
            raise UsageError(f"{given} adds up several runs, but one is named: {run}", "leave one of them out")
        _show_run(run, cluster, output)
        return
    found = hours.usage(cluster, by=by or "user", since=since)
    record = json_output.usage(found)
    if output == "json":
        echo_json(record)
    elif output == "csv":
        echo_csv(list(record["total"]), record["rows"])
    elif found.rows:
        from clusterctl.launcher.display import tables, terminal  # rich: for people only

        tables.show_usage(terminal.data(), found)
    else:
        click.echo("no runs in this time" if found.since else "no runs have started yet", err=True)
    warn_of(found.problems)


def _show_run(name: str, cluster: str | None, output: str) -> None:
    found = hours.usage_of(name, cluster)
    if output == "json":
        echo_json(json_output.run_usage(found))
    elif output == "csv":
        echo_csv(list(found.needs.memory._fields), [one._asdict() for one in found.needs.all])
    else:
        from clusterctl.launcher.display import tables, terminal

        tables.show_run_usage(terminal.data(), found)
        click.echo("\n".join(terminal.fitted([tables.note_on_usage(found)], sys.stderr)), err=True)
    warn_of(found.problems)
