"""`clusterctl image`: build, import and manage container images."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from clusterctl.launcher.api import images as api
from clusterctl.launcher.api import json_output
from clusterctl.launcher.cli.options import confirmed, echo_json, output_option, together
from clusterctl.launcher.cli.remote import remotely
from clusterctl.launcher.display.plain import clock, plain
from clusterctl.launcher.display.terminal import shown
from clusterctl.shared.errors import UsageError

_FOLDER = click.Path(file_okay=False, path_type=Path)
cluster_option = click.option("--cluster", metavar="NAME", help="Cluster whose image folder to use.")
folder_options = together(
    click.option("--images", "folder", metavar="FOLDER", type=_FOLDER, help="Image folder."),
    cluster_option,
)
making_options = together(
    click.option(
        "--engine",
        metavar="NAME",
        help="docker, podman or buildah; default: CONTAINER_ENGINE, else whichever works here.",
    ),
    click.option(
        "--output", "folder", metavar="FOLDER", type=_FOLDER, help="Output folder; default: the image folder."
    ),
    cluster_option,
    click.option("-v", "--verbose", is_flag=True, help="Show the full output of the build tools."),
)


@click.group(short_help="Build, import and manage container images")
def image() -> None:
    """Build, import and manage container images. An image is NAME.sqsh with its record, NAME.json.

    Images are kept in the cluster's `images` folder, else in the user's data folder.

    \b
    Examples:
      clusterctl image build --base bootstrap
      clusterctl image import nvcr.io#nvidia/pyg:24.11-py3
      clusterctl image list
    """


@image.command(short_help="Build clusterctl's own image")
@click.argument("name", required=False)
@click.option("--gpu/--cpu", help="Build for NVIDIA GPUs or for CPUs; default: --cpu.")
@click.option("--base", metavar="IMAGE", help="Base image; `bootstrap` makes one from Debian packages.")
@click.option(
    "--with", "replacing", metavar="REQUIREMENT", multiple=True, help="Install this package, such as torch==2.13.0."
)
@click.option("--fresh", is_flag=True, help="Download the base image and wheels again.")
@making_options
@remotely(here=True)
def build(verbose: bool, **wanted: Any) -> None:
    """Build clusterctl's own image with docker, podman or buildah: NAME.sqsh and NAME.json.

    Packages are installed in the same versions as here.

    \b
    Examples:
      clusterctl image build
      clusterctl image build mine --base bootstrap --output .
    """
    began = time.monotonic()
    with shown(verbose=verbose) as progress:
        built = api.build(**wanted, progress=progress)
    _show_made(built, f"built in {time.monotonic() - began:.1f} s")


@image.command(name="import", short_help="Import an archive, a .sqsh file or a registry image")
@click.argument("source")
@click.argument("name", required=False)
@click.option("--fresh", is_flag=True, help="Check the registry again even if the image exists.")
@making_options
@remotely(changes=True, upload="source")
def import_(verbose: bool, **wanted: Any) -> None:
    """Import SOURCE, a file or an image reference (REGISTRY#NAME:TAG), into the image folder.

    A file is a .sqsh or an archive from `docker save` or `buildah push oci-archive:`. A reference is imported once.
    If docker, podman or buildah has that image on this machine, it is taken from there (dockerd://NAME and
    podman://NAME name only such images), else fetched by enroot, with its own credentials, or by one of the three.

    \b
    Examples:
      clusterctl image import ./mine.tar
      clusterctl image import python:3.11-slim
      clusterctl image import dockerd://mine:latest
    """
    began = time.time()
    with shown(verbose=verbose) as progress:
        made = api.import_image(**wanted, progress=progress)
    if made.record and made.record.created < began:
        _show_made(made, f"already imported on {clock(made.path.stat().st_mtime, date=True)}")
    else:
        _show_made(made, f"imported in {time.time() - began:.1f} s")


@image.command(
    short_help="Run a command in an image on this machine",
    context_settings={"allow_interspersed_args": False},  # options after IMAGE belong to the command
)
@click.argument("image")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--mount", "mounts", metavar="SRC[:DST[:ro]]", multiple=True, help="Mount a folder in the container.")
@click.option(
    "--env",
    "settings",
    metavar="NAME[=VALUE]",
    multiple=True,
    help="Set an environment variable, overriding the image's.",
)
@click.option("--workdir", metavar="FOLDER", help="Working directory; default: the image's.")
@click.option("--writable", is_flag=True, help="Allow writes, to a copy that is discarded afterwards.")
@click.option("--home", "mount_home", is_flag=True, help="Mount the home folder.")
@click.option("--root", "remap_root", is_flag=True, help="Run as root inside the container.")
@click.option("--entrypoint", is_flag=True, help="Run through the image's entry point.")
@cluster_option
@remotely(here=True)
def run(
    image: str,
    command: tuple[str, ...],
    mounts: tuple[str, ...],
    settings: tuple[str, ...],
    cluster: str | None,
    **manner: Any,
) -> None:
    """Run COMMAND in IMAGE, a .sqsh file or a name in the image folder, as it would run in a task.

    Without COMMAND, run the image's default command. Needs no root, pyxis or enroot. Options come before IMAGE.

    \b
    Examples:
      clusterctl image run clusterctl-cpu -- python -V
      clusterctl image run --mount . ./mine.sqsh -- python train.py
    """
    words = command[1:] if command[:1] == ("--",) else command
    variables = {}
    for name, equals, value in (setting.partition("=") for setting in settings):
        if not name or (not equals and name not in os.environ):
            hint = "write NAME=VALUE, or the NAME of a variable that is set here"
            raise UsageError(f"--env: not a variable: {name}{equals}{value}", hint)
        variables[name] = value if equals else os.environ[name]
    view = api.ContainerView(image=image, mounts=tuple(map(api.mount_of, mounts)), **manner)
    argv, environment, unpacks = api.in_image(view, words, variables, cluster)
    if sys.stderr.isatty() and unpacks:
        click.echo(f"unpacking {unpacks} (once only)", err=True)
    sys.stdout.flush()
    os.execve(argv[0], argv, environment)


@image.command(name="list", short_help="List images")
@folder_options
@output_option
def list_(folder: Path | None, cluster: str | None, output: str) -> None:
    """List the images in the image folder with their size, age and contents.

    \b
    Example:
      clusterctl image list
    """
    found = api.images(cluster, folder=folder)
    if output == "json":
        echo_json(json_output.images(found))
    elif found:
        from clusterctl.launcher.display import terminal
        from clusterctl.launcher.display.tables import show_images

        show_images(terminal.data(), found, time.time())
    else:
        click.echo(plain(f"no images in {api.images_folder(cluster, folder)}"), err=True)


@image.command(short_help="Show an image's record")
@click.argument("name")
@folder_options
def inspect(name: str, folder: Path | None, cluster: str | None) -> None:
    """Print the record of image NAME, or of a .sqsh file, as JSON.

    \b
    Example:
      clusterctl image inspect clusterctl-cpu
    """
    echo_json(json_output.image(api.find(name, cluster, folder=folder)))


@image.command(short_help="Check images against their records")
@click.argument("names", metavar="NAME...", nargs=-1)
@folder_options
def verify(names: tuple[str, ...], folder: Path | None, cluster: str | None) -> int:
    """Read images NAME..., or all images, in full and compare them with their records.

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
        click.echo("hint: build or import the image again", err=True)
    return int(bad > 0)


@image.command(short_help="Remove images and leftovers of killed builds")
@click.argument("names", metavar="NAME...", nargs=-1)
@folder_options
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@remotely(changes=True, asks=True)
def prune(names: tuple[str, ...], folder: Path | None, cluster: str | None, yes: bool) -> None:
    """Remove images NAME... and the leftovers of killed builds and imports; without NAME, only the leftovers.

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
