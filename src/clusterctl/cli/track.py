"""`clusterctl track`: copy the metrics of a run to TensorBoard, W&B or MLflow."""

from __future__ import annotations

import time

import click

from clusterctl.api.track import tracking
from clusterctl.cli.options import cluster_option, warn_of

LOOK_SECONDS = 10.0


@click.command(short_help="Copy the metrics of a run to TensorBoard, W&B or MLflow")
@click.argument("name", metavar="RUN")
@click.option("-f", "--follow", is_flag=True, help="Keep copying until the run ends; Ctrl-C does not affect the run.")
@cluster_option
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
                    click.echo(f"{tracker}: {count:,} points")
            warn_of(mirrored.problems)
            if not follow or (mirrored.ended and not mirrored.problems):
                return int(bool(mirrored.problems))
            time.sleep(LOOK_SECONDS)
