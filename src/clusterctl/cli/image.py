"""`clusterctl image`: build, import and look after container images."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusterctl.cli.image_run import run
from clusterctl.config import cache_folder, chosen_images_folder, shipped_folder
from clusterctl.display.plain import plain

if TYPE_CHECKING:
    from clusterctl.containers.folder import Image

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
    from clusterctl.containers.build import Request
    from clusterctl.containers.build import build as build_image
    from clusterctl.containers.engine import find_engine
    from clusterctl.display.progress import shown
    from clusterctl.launch.snapshot import git_state

    began = time.monotonic()
    kind = "gpu" if gpu else "cpu"
    state = git_state(shipped_folder())
    commit = state[0]["commit"] + ("-dirty" if state[0]["dirty"] else "") if state else ""
    request = Request(
        name=name or f"clusterctl-{kind}", kind=kind, base=base, replacing=replacing, commit=commit, fresh=fresh
    )
    found = find_engine(engine)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    with shown(verbose=verbose) as progress:
        folder = (folder or chosen_images_folder(cluster)).absolute()
        built = build_image(request, found, folder, cache_folder(), python, progress)
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
    from clusterctl.containers.folder import imported

    began = time.monotonic()
    folder = (folder or chosen_images_folder(cluster)).absolute()
    is_file = source.startswith(("/", "./", "../", "~")) or Path(source).is_file()
    if not is_file and not fresh and (there := imported(folder, source, name)):
        _show_made(there, f"there since {time.strftime('%F %R', time.localtime(there.path.stat().st_mtime))}")
        return
    from clusterctl.containers.importing import import_file, import_reference  # with what it needs to import: 0.1 s
    from clusterctl.display.progress import shown

    with shown(verbose=verbose) as progress:
        if is_file:
            made = import_file(Path(source).expanduser(), name, folder, progress)
        else:
            made = import_reference(source, name, folder, progress, engine=engine, fresh=fresh)
    _show_made(made, f"there in {time.monotonic() - began:.1f} s")


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
    from clusterctl.containers.folder import images_in

    folder = folder or chosen_images_folder(cluster)
    found = images_in(folder)
    if output == "json":
        click.echo(json.dumps({"schema_version": 1, "images": [_as_json(one) for one in found]}, indent=1))
    elif found:
        from clusterctl.display import terminal
        from clusterctl.display.images import show_images

        show_images(terminal.data(), found, time.time())
    else:
        click.echo(plain(f"no images in {folder}"), err=True)


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
    from clusterctl.containers.folder import find_image

    found = find_image(folder or chosen_images_folder(cluster), name)
    click.echo(json.dumps({"schema_version": 1, **_as_json(found)}, indent=1))


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
    from clusterctl.containers import folder as images

    folder = folder or chosen_images_folder(cluster)
    found = [images.find_image(folder, name) for name in names] or images.images_in(folder)
    bad = 0
    for one in found:
        problems = images.verify(one)
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
    from clusterctl.cli.options import confirmed
    from clusterctl.containers.folder import find_image, leftovers, remove

    folder = folder or chosen_images_folder(cluster)
    found = [find_image(folder, name) for name in names]
    paths = [one.path for one in found] + leftovers(folder, time.time())
    if not paths:
        click.echo("nothing to remove", err=True)
        return
    for path in paths:
        click.echo(plain(os.fspath(path)))
    if confirmed(f"remove {len(paths)}?", yes=yes):
        for path in paths:
            remove(path)


def _show_made(made: Image, how: str) -> None:
    assert made.record is not None
    click.echo(f"{how}, {made.record.size / 2**20:.0f} MiB", err=True)
    click.echo(plain(os.fspath(made.path)))


def _as_json(found: Image) -> dict[str, object]:
    from clusterctl.spec import to_record

    known = to_record(found.record) if found.record else {"problem": found.problem or "no record"}
    return {"name": found.name, "path": os.fspath(found.path), **known}
