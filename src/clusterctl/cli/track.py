"""`clusterctl track`: copy the metrics of a run to TensorBoard, W&B or MLflow."""

from __future__ import annotations

import time

import click

from clusterctl.api.track import tracking
from clusterctl.cli.options import cluster_option, warn_of

LOOK_SECONDS = 10.0


@click.command(short_help="Copy the metrics of a run to TensorBoard, W&B or MLflow")
@click.argument("name", metavar="RUN")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended; Ctrl-C leaves the run alone.")
@cluster_option
def track(name: str, follow: bool, cluster: str | None) -> int:
    """Copy what is new in the metrics of RUN to the trackers that its [track] names.

    A run is one run in a tracker, through all its restarts and resumes, and no point is there twice. The exit code is 1
    if a tracker could not be reached; what it lacks is copied the next time.

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
