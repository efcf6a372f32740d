"""`clusterctl image`: build, import and look after container images."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import click

from clusterctl.api import images as api
from clusterctl.cli.image_run import run
from clusterctl.cli.options import confirmed
from clusterctl.display.build_progress import shown
from clusterctl.display.plain import plain

_FOLDER = click.Path(file_okay=False, path_type=Path)
images_option = click.option("--images", "folder", metavar="FOLDER", type=_FOLDER, help="The image folder.")
output_option = click.option(
    "--output", "folder", metavar="FOLDER", type=_FOLDER, help="Where to leave it; default: the image folder."
)
cluster_option = click.option("--cluster", metavar="NAME", help="The cluster whose image folder is meant.")
engine_option = click.option(
    "--engine", metavar="NAME", help="docker, podman or buildah; default: CONTAINER_ENGINE, else what works here."
)
verbose_option = click.option("-v", "--verbose", is_flag=True, help="Show all that the programs at work say.")


@click.group(short_help="Build, import and look after container images")
def image() -> None:
    """Build, import and look after container images: NAME.sqsh, with NAME.json beside it.

    They lie in the cluster's `images` folder, else in the user's data folder.

    \b
    Examples:
      clusterctl image build --base bootstrap
      clusterctl image import nvcr.io#nvidia/pyg:24.11-py3
      clusterctl image list
    """


image.add_command(run)


@image.command(short_help="Build clusterctl's own image")
@click.argument("name", required=False)
@click.option("--gpu/--cpu", help="For NVIDIA's GPUs, or without; default: --cpu.")
@click.option("--base", metavar="IMAGE", help="The base image; `bootstrap` makes one from Debian packages.")
@click.option("--with", "replacing", metavar="REQUIREMENT", multiple=True, help="Install this, such as torch==2.13.0.")
@click.option("--fresh", is_flag=True, help="Fetch base image and wheels again.")
@engine_option
@output_option
@cluster_option
@verbose_option
def build(
    name: str | None,
    gpu: bool,
    base: str | None,
    replacing: tuple[str, ...],
    fresh: bool,
    engine: str | None,
    folder: Path | None,
    cluster: str | None,
    verbose: bool,
) -> None:
    """Build clusterctl's own image with docker, podman or buildah: NAME.sqsh and NAME.json.

    Packages come in the versions that are installed here.

    \b
    Examples:
      clusterctl image build
      clusterctl image build mine --base bootstrap --output .
    """
    began = time.monotonic()
    with shown(verbose=verbose) as progress:
        built = api.build(
            *(name, cluster),
            gpu=gpu,
            base=base,
            replacing=replacing,
            fresh=fresh,
            engine=engine,
            folder=folder,
            progress=progress,
        )
    _show_made(built, f"built in {time.monotonic() - began:.1f} s")


@image.command(name="import", short_help="Bring in an archive, a .sqsh or a registry's image")
@click.argument("source")
@click.argument("name", required=False)
@click.option("--fresh", is_flag=True, help="Ask the registry again, even if the image is there.")
@engine_option
@output_option
@cluster_option
@verbose_option
def import_(
    source: str,
    name: str | None,
    fresh: bool,
    engine: str | None,
    folder: Path | None,
    cluster: str | None,
    verbose: bool,
) -> None:
    """Bring SOURCE into the image folder: a file's path, or a reference (REGISTRY#NAME:TAG).

    A file is an archive of `docker save` or `buildah push oci-archive:`, or a .sqsh. A reference is imported once, by
    enroot where it is installed, with enroot's own credentials; else by docker, podman or buildah.

    \b
    Examples:
      clusterctl image import ./mine.tar
      clusterctl image import python:3.11-slim
    """
    began = time.time()
    with shown(verbose=verbose) as progress:
        made = api.import_image(source, name, cluster, fresh=fresh, engine=engine, folder=folder, progress=progress)
    if made.record and made.record.created < began:
        since = made.path.stat().st_mtime
        _show_made(made, f"there since {time.strftime('%F %R', time.localtime(since))}")
    else:
        _show_made(made, f"there in {time.time() - began:.1f} s")


@image.command(name="list", short_help="List the images of the image folder")
@images_option
@cluster_option
@click.option("-o", "output", type=click.Choice(["table", "json"]), default="table", help="What stdout gets.")
def list_(folder: Path | None, cluster: str | None, output: str) -> None:
    """List the images of the image folder: size, age, what is in them.

    \b
    Example:
      clusterctl image list
    """
    found = api.images(cluster, folder=folder)
    if output == "json":
        click.echo(json.dumps({"schema_version": 1, "images": [api.image_record(one) for one in found]}, indent=1))
    elif found:
        from clusterctl.display import terminal
        from clusterctl.display.images import show_images

        show_images(terminal.data(), found, time.time())
    else:
        click.echo(plain(f"no images in {api.images_folder(cluster, folder)}"), err=True)


@image.command(short_help="Show all that is known of an image")
@click.argument("name")
@images_option
@cluster_option
def inspect(name: str, folder: Path | None, cluster: str | None) -> None:
    """Print the record of image NAME, or of the .sqsh at a path, as JSON.

    \b
    Example:
      clusterctl image inspect clusterctl-cpu
    """
    found = api.find(name, cluster, folder=folder)
    click.echo(json.dumps({"schema_version": 1, **api.image_record(found)}, indent=1))


@image.command(short_help="Check that images are what their records say")
@click.argument("names", metavar="NAME...", nargs=-1)
@images_option
@cluster_option
def verify(names: tuple[str, ...], folder: Path | None, cluster: str | None) -> int:
    """Read images NAME..., or all, to the last byte, and compare them with their records.

    \b
    Example:
      clusterctl image verify
    """
    found = [api.find(name, cluster, folder=folder) for name in names] or api.images(cluster, folder=folder)
    bad = 0
    for one in found:
        problems = api.verify(one)
        bad += bool(problems)
        click.echo(plain(f"{one.name}: {'; '.join(problems) or 'ok'}"))
    if bad:
        click.echo("hint: build or import it again", err=True)
    return int(bad > 0)


@image.command(short_help="Remove images, and what killed builds left behind")
@click.argument("names", metavar="NAME...", nargs=-1)
@images_option
@cluster_option
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def prune(names: tuple[str, ...], folder: Path | None, cluster: str | None, yes: bool) -> None:
    """Remove images NAME...; without one only what builds and imports that were killed left behind.

    \b
    Example:
      clusterctl image prune clusterctl-cpu
    """
    paths = api.prunable(api.images_folder(cluster, folder), names)
    if not paths:
        click.echo("nothing to remove", err=True)
        return
    for path in paths:
        click.echo(plain(os.fspath(path)))
    if confirmed(f"remove {len(paths)}?", yes=yes):
        for path in paths:
            api.remove(path)


def _show_made(made: api.Image, how: str) -> None:
    assert made.record is not None
    click.echo(f"{how}, {made.record.size / 2**20:.0f} MiB", err=True)
    click.echo(plain(os.fspath(made.path)))
