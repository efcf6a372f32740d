"""`clusterctl image run`: run a command in an image on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from clusterctl.errors import UsageError


@click.command(
    short_help="Run a command in an image on this machine",
    context_settings={"allow_interspersed_args": False},  # what follows IMAGE is the command's
)
@click.argument("image")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--mount", "mounts", metavar="SRC[:DST[:ro]]", multiple=True, help="A folder to see in it.")
@click.option("--env", "settings", metavar="NAME[=VALUE]", multiple=True, help="A variable that beats the image's own.")
@click.option("--workdir", metavar="FOLDER", help="Where to start; default: the image's own.")
@click.option("--writable", is_flag=True, help="Let it write into a copy that is gone afterwards.")
@click.option("--home", is_flag=True, help="Mount the home folder.")
@click.option("--root", is_flag=True, help="Be root inside.")
@click.option("--entrypoint", is_flag=True, help="Start through the image's entry point.")
@click.option("--cluster", metavar="NAME", help="The cluster whose image folder is meant.")
def run(
    image: str,
    command: tuple[str, ...],
    mounts: tuple[str, ...],
    settings: tuple[str, ...],
    workdir: str | None,
    writable: bool,
    home: bool,
    root: bool,
    entrypoint: bool,
    cluster: str | None,
) -> None:
    """Run COMMAND in IMAGE, a .sqsh file or its name in the image folder, as a task of a run would find it there.

    Without a command: what the image itself starts. Needs neither root nor pyxis nor enroot. The options come first.

    \b
    Examples:
      clusterctl image run clusterctl-cpu -- python -V
      clusterctl image run --mount . ./mine.sqsh -- python train.py
    """
    from clusterctl.config import chosen_images_folder
    from clusterctl.containers.folder import find_image
    from clusterctl.containers.mounts import Mount
    from clusterctl.containers.unpacked import is_here
    from clusterctl.containers.view import View

    path = find_image(chosen_images_folder(cluster), image).path.absolute()
    view = View(
        image=str(path),
        mounts=tuple(Mount.parse(_absolute(mount)) for mount in mounts),
        workdir=workdir,
        writable=writable,
        mount_home=home,
        remap_root=root,
        entrypoint=entrypoint,
        environment=tuple(_set(setting) for setting in settings),
    )
    if sys.stderr.isatty() and not is_here(path):
        click.echo(f"unpacking {path.name}, once", err=True)
    runner = str(Path(__file__).parents[1] / "containers")
    sys.stdout.flush()
    words = command[1:] if command[:1] == ("--",) else command
    os.execv(sys.executable, [sys.executable, "-I", "-S", runner, *view.flags(), "--", *words])


def _absolute(mount: str) -> str:
    """`mount` with a source such as `.` or `~/data` spelt out."""
    source, colon, rest = mount.partition(":")
    return f"{Path(source).expanduser().absolute()}{colon}{rest}" if source else mount


def _set(setting: str) -> str:
    """Set NAME=VALUE in this process's environment, which the command inherits; the name."""
    name, equals, value = setting.partition("=")
    if not name or (not equals and name not in os.environ):
        raise UsageError(f"--env: no variable: {setting}", "write NAME=VALUE, or NAME of one that is set here")
    if equals:
        os.environ[name] = value
    return name
