"""Gathers what the preflight of containers judges, from this machine alone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.checks.container import Facts, Place
from clusterctl.containers import unpacked
from clusterctl.containers.contents import Contents, Unreadable, look_into
from clusterctl.containers.folder import is_squashfs

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from clusterctl.containers.view import View


def gather(
    view: View,
    python: str,
    *,
    brings_code: bool = False,
    brings_packages: bool = False,
    made_later: Container[str] = (),
    builtin: bool = False,
    gpus: int = 0,
    srun_help: str | None,
    unpacks_here: bool,
    environment: Mapping[str, str] = os.environ,
) -> Facts:
    """Look at the image and the mounts of `view`.

    `made_later` are sources that need not be there yet; `unpacks_here` says whether this machine will run the image.
    """
    image = Path(view.image)
    problem, squashfs = "", True
    contents: Contents | None = None
    is_file = view.image.startswith("/")
    if is_file and image.exists():
        try:
            squashfs = is_squashfs(image)
            contents = look_into(image) if squashfs else None
        except OSError as error:
            problem = str(error.strerror)
        except Unreadable as error:
            problem = str(error)
    return Facts(
        view=view,
        python=python,
        brings_code=brings_code,
        brings_packages=brings_packages,
        srun_help=srun_help,
        image=look_at(image) if is_file else None,
        problem=problem,
        squashfs=squashfs,
        contents=contents,
        has_unsquashfs=shutil.which("unsquashfs", path=environment.get("PATH")) is not None,
        unpacks_here=unpacks_here,
        builtin=builtin,
        gpus=gpus,
        sources={mount.source: look_at(Path(mount.source)) for mount in view.mounts if mount.source not in made_later},
        rooms=_rooms(image, environment) if unpacks_here and contents else None,
        environment=environment,
    )


def look_at(path: Path) -> Place:
    """Whether `path` is there, or not even the first folder on the way to it."""
    try:
        exists = path.exists()
    except OSError:  # too long, or a folder that may not be entered: the nodes' user is the same one
        exists = False
    return Place(exists=exists, foreign=not exists and len(path.parts) > 2 and not Path(*path.parts[:2]).exists())


def _rooms(image: Path, environment: Mapping[str, str]) -> dict[str, int] | None:
    """The room in each folder that the image may be unpacked into; None where its tree is there already."""
    if unpacked.is_here(image, environment):
        return None
    return {str(store): unpacked.room(store) for store in unpacked.stores(environment)}
