"""`clusterctl data`: download or generate a data set."""

from __future__ import annotations

import click

from clusterctl.launcher.api import data as api
from clusterctl.launcher.cli.remote import remotely

_NAMES = click.Choice(
    ["reddit", "taobao", "ogbn-arxiv", "ogbn-products", "ogbn-papers100M", "ogbn-mag", "igb-heterogeneous"]
)
_ROOT = click.option("--root", metavar="DIR", required=True, help="Data set folder, shared by all nodes.")
_CLUSTER = click.option("--cluster", metavar="NAME", help="Cluster whose Python and runs folder to use.")


@click.group(short_help="Download or generate data sets")
def data() -> None:
    """Download or generate data sets. The work runs in a separate process, which needs torch.

    \b
    Examples:
      clusterctl data generate taobao --scale 0.01 --root /shared/taobao
      clusterctl data prepare reddit --root /shared/reddit
    """


@data.command(short_help="Generate a synthetic data set of any size")
@click.argument("name", type=_NAMES)
@_ROOT
@click.option(
    "--scale",
    metavar="S",
    type=click.FloatRange(0, 100, min_open=True),
    default=0.01,
    help="Size relative to the real data set; default: 0.01.",
)
@click.option("--seed", metavar="N", type=click.IntRange(0, 2**31 - 1), default=0, help="Random seed; default: 0.")
@_CLUSTER
@remotely(changes=True)
def generate(name: str, root: str, scale: float, seed: int, cluster: str | None) -> int:
    """Generate a synthetic data set with the raw format and statistics of the real one, and a learnable signal.

    The score of the best possible model is printed, and saved as truth.json next to the data.

    \b
    Example:
      clusterctl data generate taobao --scale 0.01 --root /tmp/taobao
      clusterctl submit taobao --set data.root=/tmp/taobao
    """
    return api.generate(name, root, scale=scale, seed=seed, cluster=cluster, quiet=False)


@data.command(short_help="Download a data set and convert it")
@click.argument("name", type=_NAMES)
@_ROOT
@click.option(
    "--order",
    type=click.Choice(["given", "neighbours"]),
    default="given",
    help="Order of the nodes, as in data.order; default: given.",
)
@click.option(
    "--disk-precision",
    type=click.Choice(["given", "bfloat16"]),
    default="given",
    help="Precision of the features, as in data.disk_precision; default: given.",
)
@_CLUSTER
@remotely(changes=True)
def prepare(name: str, root: str, order: str, disk_precision: str, cluster: str | None) -> int:
    """Download a data set, unless its raw files are in DIR, and convert it ahead of the first run.

    If interrupted, run it again to continue. Converted files are written to the runs folder, so DIR may be read-only.

    \b
    Example:
      clusterctl data prepare reddit --root /shared/reddit
      clusterctl submit reddit --set data.root=/shared/reddit
      clusterctl data prepare ogbn-papers100M --root /datasets/papers100M
    """
    return api.prepare(name, root, order=order, disk_precision=disk_precision, cluster=cluster, quiet=False)
