"""`clusterctl data`: bring a data set to a folder, from the network or made up."""

from __future__ import annotations

import click

from clusterctl.api import data as api

_NAMES = click.Choice(
    ["reddit", "taobao", "ogbn-arxiv", "ogbn-products", "ogbn-papers100M", "ogbn-mag", "igb-heterogeneous"]
)
_SCALE = click.FloatRange(0, 100, min_open=True)
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
    return api.generate(name, root, scale=scale, seed=seed, cluster=cluster, quiet=False)


@data.command(short_help="Download a data set and convert it")
@click.argument("name", type=_NAMES)
@_ROOT
@_CLUSTER
def prepare(name: str, root: str, cluster: str | None) -> int:
    """Download a data set, unless its raw files are in DIR, and convert it, so that the first run need not.

    Typed again after a break, it goes on where it was. What is converted goes to the runs folder: a DIR with the raw
    files may be read-only.

    \b
    Example:
      clusterctl data prepare reddit --root /shared/reddit
      clusterctl submit reddit --set data.root=/shared/reddit
      clusterctl data prepare ogbn-papers100M --root /datasets/papers100M
    """
    return api.prepare(name, root, cluster=cluster, quiet=False)
