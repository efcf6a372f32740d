"""A command in an image on this machine, as a task of a run would find it there."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import clusterctl
from clusterctl.config import chosen_images_folder
from clusterctl.containers.folder import find_image
from clusterctl.containers.pyxis import ContainerView, Mount
from clusterctl.containers.unpacked import is_here

if TYPE_CHECKING:
    from collections.abc import Mapping


class InImage(NamedTuple):
    """What to execute. `unpacks` names the image that is unpacked first, once."""

    argv: list[str]
    environment: dict[str, str]
    unpacks: str


def in_image(
    image: str,
    command: tuple[str, ...] = (),
    cluster: str | None = None,
    *,
    mounts: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    workdir: str | None = None,
    writable: bool = False,
    home: bool = False,
    root: bool = False,
    entrypoint: bool = False,
) -> InImage:
    """`command`, or what the image itself starts, in `image`: a .sqsh file or its name in the image folder.

    `environment` beats the image's own variables. Raises NotFoundError, and UsageError for a mount.
    """
    path = find_image(chosen_images_folder(cluster), image).path.absolute()
    view = ContainerView(
        image=str(path),
        mounts=tuple(Mount.parse(_absolute(mount)) for mount in mounts),
        workdir=workdir,
        writable=writable,
        mount_home=home,
        remap_root=root,
        entrypoint=entrypoint,
        environment=tuple(environment or ()),
    )
    runner = str(Path(clusterctl.__file__).parent / "containers")
    argv = [sys.executable, "-I", "-S", runner, *view.flags(), "--", *command]
    return InImage(argv, {**os.environ, **(environment or {})}, "" if is_here(path) else path.name)


def _absolute(mount: str) -> str:
    """`mount` with a source such as `.` or `~/data` spelt out."""
    source, colon, rest = mount.partition(":")
    return f"{Path(source).expanduser().absolute()}{colon}{rest}" if source else mount
