"""`clusterctl image run`: run a command in an image on this machine."""

from __future__ import annotations

import os
import sys

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
    from clusterctl.api.image_run import in_image

    inside = in_image(
        image,
        command[1:] if command[:1] == ("--",) else command,
        cluster,
        mounts=mounts,
        environment=dict(map(_variable, settings)),
        workdir=workdir,
        writable=writable,
        home=home,
        root=root,
        entrypoint=entrypoint,
    )
    if sys.stderr.isatty() and inside.unpacks:
        click.echo(f"unpacking {inside.unpacks}, once", err=True)
    sys.stdout.flush()
    os.execve(inside.argv[0], inside.argv, inside.environment)


def _variable(setting: str) -> tuple[str, str]:
    """NAME=VALUE, or NAME of a variable that is set here."""
    name, equals, value = setting.partition("=")
    if not name or (not equals and name not in os.environ):
        raise UsageError(f"--env: no variable: {setting}", "write NAME=VALUE, or NAME of one that is set here")
    return name, value if equals else os.environ[name]
