"""`clusterctl image`: build, import and look after container images."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusterctl.cli.image_run import run
from clusterctl.config import cache_folder, images_folder, load_cluster, shipped_folder

if TYPE_CHECKING:
    from clusterctl.containers.folder import Image

images_option = click.option(
    "--images", "folder", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path), help="The image folder."
)


@click.group(short_help="Build, import and look after container images")
def image() -> None:
    """Build, import and look after container images: NAME.sqsh, with NAME.json beside it.

    They lie in the cluster's `images` folder, else in the user's data folder.

    \b
    Examples:
      clusterctl image build
      clusterctl image import nvcr.io#nvidia/pyg:24.11-py3
      clusterctl image list
    """


image.add_command(run)


@image.command(short_help="Build clusterctl's own image")
@click.argument("name", required=False)
@click.option("--gpu/--cpu", help="Which Dockerfile; default: --cpu.")
@click.option("--base", metavar="IMAGE", help="The base image; `bootstrap` makes one from Debian packages.")
@click.option(
    "--engine", metavar="NAME", help="docker, podman or buildah; default: $CONTAINER_ENGINE, else what is there."
)
@click.option(
    "--with", "replacing", metavar="REQUIREMENT", multiple=True, help="A package to install, in this version."
)
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to leave it; default: the image folder.",
)
@click.option("--cluster", metavar="NAME", help="The cluster whose image folder is meant.")
@click.option("-v", "--verbose", is_flag=True, help="Show all that the engine says.")
def build(
    name: str | None, gpu: bool, base: str | None, engine: str | None, replacing: tuple[str, ...], folder: Path | None,
    cluster: str | None, verbose: bool,
) -> None:  # fmt: skip
    """Build clusterctl's own image, and leave NAME.sqsh and NAME.json in the image folder.

    \b
    Examples:
      clusterctl image build
      clusterctl image build --base bootstrap
    """
    from clusterctl.containers.build import Request
    from clusterctl.containers.build import build as build_image
    from clusterctl.containers.engine import find_engine
    from clusterctl.display.progress import shown
    from clusterctl.launch.git import git_state

    began = time.monotonic()
    kind = "gpu" if gpu else "cpu"
    state = git_state(shipped_folder())
    commit = state[0]["commit"] + ("-dirty" if state[0]["dirty"] else "") if state else ""
    request = Request(name=name or f"clusterctl-{kind}", kind=kind, base=base, replacing=replacing, commit=commit)
    found = find_engine(engine)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    with shown(verbose=verbose) as progress:
        built = build_image(request, found, folder or _images(cluster), cache_folder(), python, progress)
    _done(built, "built", began)


def _images(cluster: str | None) -> Path:
    """The cluster's image folder; without a word about a cluster, the user's where no cluster can be told."""
    return images_folder(load_cluster(cluster))


def _done(found: Image, how: str, began: float) -> None:
    assert found.record is not None
    size = found.record.size / 2**20
    click.echo(f"{how} in {time.monotonic() - began:.1f} s, {size:.0f} MiB", err=True)
    click.echo(os.fspath(found.path))
