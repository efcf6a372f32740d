"""`clusterctl data`: bring a data set to a folder, from the network or made up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

import clusterctl
from clusterctl.config import chosen_runs_folder, load_cluster
from clusterctl.errors import NotFoundError
from clusterctl.runs.layout import RunDir

_NAMES = click.Choice(["reddit", "taobao"])
_ROOT = click.option("--root", metavar="DIR", required=True, help="The data set's folder, shared by all nodes.")
_CLUSTER = click.option("--cluster", metavar="NAME", help="Whose Python and runs folder to use.")


@click.group(short_help="Bring data sets here, or make them up")
def data() -> None:
    """Bring data sets here, or make them up. A program of its own does the work: it needs torch, this one does not.

    \b
    Examples:
      clusterctl data generate taobao --scale 0.01 --root /shared/taobao
      clusterctl data prepare reddit --root /shared/reddit
    """


@data.command(short_help="Make a data set up, of any size")
@click.argument("name", type=_NAMES)
@_ROOT
@click.option(
    "--scale",
    metavar="S",
    type=click.FloatRange(0, 100, min_open=True),
    default=0.01,
    help="1: real size; default: 0.01.",
)
@click.option("--seed", metavar="N", type=click.IntRange(0, 2**31 - 1), default=0, help="Default: 0.")
@_CLUSTER
def generate(name: str, root: str, scale: float, seed: int, cluster: str | None) -> int:
    """Make up a data set with the raw format and statistics of the real one, and with something to be learnt.

    How good the best possible model is, is printed and stands beside the data, in truth.json.

    \b
    Example:
      clusterctl data generate taobao --scale 0.01 --root /tmp/taobao
      clusterctl submit taobao --set data.root=/tmp/taobao
    """
    return _started(cluster, "clusterctl.workloads.generated", name, str(scale), str(seed), root)


@data.command(short_help="Download a data set and convert it")
@click.argument("name", type=_NAMES)
@_ROOT
@_CLUSTER
def prepare(name: str, root: str, cluster: str | None) -> int:
    """Download a data set, unless its raw files are in DIR, and convert it, so that the first run need not.

    Typed again after a break, it goes on where it was.

    \b
    Example:
      clusterctl data prepare reddit --root /shared/reddit
      clusterctl submit reddit --set data.root=/shared/reddit
    """
    cache = RunDir(chosen_runs_folder(cluster) / "any").data_cache
    return _started(cluster, "clusterctl.workloads.prepare", name, root, str(cache))


def _started(cluster: str | None, module: str, *words: str) -> int:
    """Run the module with the Python of the tasks; its exit code."""
    python = (load_cluster(cluster).python if cluster else None) or sys.executable
    library = str(Path(clusterctl.__file__).parents[1])
    path = os.pathsep.join(filter(None, [library, os.environ.get("PYTHONPATH")]))
    try:
        return subprocess.call([python, "-m", module, *words], env={**os.environ, "PYTHONPATH": path})
    except OSError as error:
        raise NotFoundError(f"cannot start {python}: {error.strerror}", "see `python` in the cluster file") from None
