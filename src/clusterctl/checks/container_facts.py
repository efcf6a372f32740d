"""Gathers what is known of a container, from this machine alone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.checks.look import exists, seen
from clusterctl.checks.surroundings import ContainerFacts
from clusterctl.containers import unpacked
from clusterctl.containers.contents import Contents, Unreadable, look_into
from clusterctl.containers.folder import is_squashfs

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from clusterctl.checks.surroundings import Seen
    from clusterctl.containers.pyxis import ContainerView
    from clusterctl.spec import Cluster


def gather_container(
    view: ContainerView,
    python: str,
    cluster: Cluster,
    *,
    gpus: int = 0,
    brings_code: bool = False,
    brings_packages: bool = False,
    made_later: Container[str] = (),
    srun_help: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> ContainerFacts:
    """Look at the image and the mounts of `view`. `made_later` are sources that need not exist yet."""
    image = Path(view.image)
    nodes_are_here = cluster.nodes_are_here
    unpacks_here = nodes_are_here and not cluster.has_pyxis
    problem, squashfs = "", True
    contents: Contents | None = None
    is_file = view.image.startswith("/")
    if is_file and exists(image):
        try:
            squashfs = is_squashfs(image)
            contents = look_into(image) if squashfs else None
        except OSError as error:
            problem = str(error.strerror)
        except Unreadable as error:
            problem = str(error)
    sources = dict.fromkeys(mount.source for mount in view.mounts if mount.source not in made_later)
    return ContainerFacts(
        view=view,
        python=python,
        brings_code=brings_code,
        brings_packages=brings_packages,
        srun_help=srun_help,
        image=_shared(image, nodes_are_here) if is_file else None,
        problem=problem,
        squashfs=squashfs,
        contents=contents,
        has_unsquashfs=shutil.which("unsquashfs", path=environment.get("PATH")) is not None,
        unpacks_here=unpacks_here,
        builtin=not cluster.has_pyxis,
        gpus=gpus,
        sources=tuple(_shared(Path(source), nodes_are_here) for source in sources),
        rooms=_rooms(image, environment) if unpacks_here and contents else None,
        environment=environment,
    )


def _shared(path: Path, nodes_are_here: bool) -> Seen:
    """What is mounted is on a shared file system, as a rule: if the first folder of its path is here, it should be."""
    return seen(path, nodes_are_here, Path(*path.parts[: 2 if len(path.parts) > 2 else 1]))


def _rooms(image: Path, environment: Mapping[str, str]) -> dict[str, int] | None:
    """The room in each folder that the image may be unpacked into; None if it is unpacked already."""
    if unpacked.is_here(image, environment):
        return None
    return {str(store): unpacked.room(store) for store in unpacked.stores(environment)}
