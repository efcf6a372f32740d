"""Container images: build, import, enter, list, verify, remove. An image is NAME.sqsh and NAME.json in a folder."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import clusterctl
from clusterctl.launcher.api.remote.operations import suggesting
from clusterctl.launcher.config import cache_folder, chosen_images_folder, expanded, shipped_folder
from clusterctl.launcher.config.shown import SILENT, ProgressListener, Shown
from clusterctl.launcher.containers import contents as files
from clusterctl.launcher.containers.contents import Image as Image
from clusterctl.launcher.containers.contents import remove as remove
from clusterctl.launcher.containers.contents import verify as verify
from clusterctl.launcher.containers.runtimes import ContainerView as ContainerView
from clusterctl.launcher.containers.runtimes import Mount
from clusterctl.launcher.containers.unpacked import is_here
from clusterctl.shared.errors import UsageError
from clusterctl.shared.record.interpreter import isolated

if TYPE_CHECKING:
    from collections.abc import Mapping


def images_folder(cluster: str | None = None, folder: Path | None = None) -> Path:
    """`folder`, else the image folder of `cluster`, else the user's own. Raises UsageError for the path of an image."""
    if folder and folder.suffix == files.SUFFIX and not folder.is_dir():
        raise UsageError(f"not a folder: {folder}", "give a folder; the image's name comes first: image build NAME")
    return folder or chosen_images_folder(cluster)


class Images(Shown, list[Image]):
    """Images, shown as a table."""


@suggesting
def images(cluster: str | None = None, *, folder: Path | None = None) -> Images:
    """The images of an image folder, by name."""
    return Images(files.images_in(images_folder(cluster, folder)))


def find(name: str, cluster: str | None = None, *, folder: Path | None = None) -> Image:
    """The image `name` of an image folder, or the .sqsh at a path. Raises NotFoundError."""
    return files.find_image(images_folder(cluster, folder), name)


def build(
    name: str | None = None,
    cluster: str | None = None,
    *,
    gpu: bool = False,
    base: str | None = None,
    replacing: tuple[str, ...] = (),
    fresh: bool = False,
    engine: str | None = None,
    folder: Path | None = None,
    progress: ProgressListener = SILENT,
) -> Image:
    """Build clusterctl's own image, with the package versions that are installed here. Raises ImageError.

    `base` is the base image ("bootstrap" makes one from Debian packages); `replacing` overrides requirements, such as
    torch==2.13.0; `fresh` fetches base image and wheels again; `engine` is docker, podman or buildah.
    """
    from clusterctl.launcher.containers.build import BuildRequest
    from clusterctl.launcher.containers.build import build as build_image
    from clusterctl.launcher.containers.engine import find_engine
    from clusterctl.launcher.submission.git import git_state

    kind, target = "gpu" if gpu else "cpu", images_folder(cluster, folder).absolute()
    state = git_state(shipped_folder())
    commit = state.commit + ("-dirty" if state.dirty else "") if state else ""
    request = BuildRequest(
        name=name or f"clusterctl-{kind}", kind=kind, base=base, replacing=replacing, commit=commit, fresh=fresh
    )
    found = find_engine(engine)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return build_image(request, found, target, cache_folder(), python, progress)


def import_image(
    source: str,
    name: str | None = None,
    cluster: str | None = None,
    *,
    fresh: bool = False,
    engine: str | None = None,
    folder: Path | None = None,
    progress: ProgressListener = SILENT,
) -> Image:
    """Import `source` into the image folder: a file, or a reference (REGISTRY#NAME:TAG). Raises ImageError.

    A reference that was imported before is not fetched again unless `fresh`.
    """
    target = images_folder(cluster, folder).absolute()
    is_file = source.startswith(("/", "./", "../", "~")) or Path(source).is_file()
    if not is_file and not fresh and (there := files.imported(target, source, name)):
        return there
    from clusterctl.launcher.containers.build import import_file, import_reference  # late: takes 0.1 s

    if is_file:
        return import_file(expanded(source), name, target, progress)
    return import_reference(source, name, target, progress, engine=engine, fresh=fresh)


def mount_of(text: str) -> Mount:
    """The mount SRC[:DST[:ro]], where SRC may be relative, such as `.` or `~/data`. Raises UsageError."""
    source, colon, rest = text.partition(":")
    return Mount.parse(f"{expanded(source).absolute()}{colon}{rest}" if source else text)


def in_image(
    view: ContainerView, command: tuple[str, ...], environment: Mapping[str, str], cluster: str | None = None
) -> tuple[list[str], dict[str, str], str]:
    """How to run `command`, or the image's entry point, in the image of `view`: a .sqsh file, or a name in the folder.

    Returns the command line and environment to execute, and the name of the image if it must be unpacked first, else
    "". `environment` overrides the image's own variables. Raises NotFoundError.
    """
    path = find(view.image, cluster).path.absolute()
    view = replace(view, image=str(path), environment=tuple(environment))
    runner = str(Path(clusterctl.__file__).parent / "launcher" / "containers")
    argv = isolated(sys.executable, runner, *view.flags(), "--", *command)
    return argv, {**os.environ, **environment}, "" if is_here(path) else path.name


def prunable(folder: Path, names: tuple[str, ...] = ()) -> list[Path]:
    """The images `names` of `folder`, and leftovers of killed builds and imports."""
    return [files.find_image(folder, name).path for name in names] + files.leftovers(folder, time.time())
