"""Bring an image into the image folder: an archive, a .sqsh, a local image or a registry's. Once, whoever asks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.containers.archive import open_archive
from clusterctl.containers.engine import Engine, find_engine, follow
from clusterctl.containers.engine_errors import explain
from clusterctl.containers.folder import SUFFIX, Image, check_name, imported, is_squashfs, publish, sha256_of
from clusterctl.containers.image import check_image, name_of
from clusterctl.containers.keep import keep
from clusterctl.containers.record import ImageRecord, Inventory, environment_of, read_record
from clusterctl.containers.squashfs import COMPRESSION, members_of, members_of_stream
from clusterctl.errors import ImageError, NotFoundError
from clusterctl.runs.once import once

if TYPE_CHECKING:
    from clusterctl.containers.listener import ProgressListener

_ARCHIVE_ENDINGS = re.compile(r"\.(sqsh|squashfs|tar|tar\.gz|tgz|tar\.zst|oci|docker)$")


def import_file(path: Path, name: str | None, folder: Path, progress: ProgressListener) -> Image:
    """The archive or .sqsh at `path` as the image `name` of `folder`. Raises NotFoundError, ImageError."""
    if not path.is_file():
        raise NotFoundError(f"no such file: {path}", "an image of a registry is written registry#name:tag")
    name = check_name(name or _ARCHIVE_ENDINGS.sub("", path.name))
    folder.mkdir(parents=True, exist_ok=True)
    if is_squashfs(path):
        progress.stage(f"copying {path.name}", path.stat().st_size)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder) as place:
            return _published(Path(shutil.copyfile(path, Path(place, "image.sqsh"))), name, path.name, folder)
    progress.stage(f"reading {path.name}")
    with open_archive(path) as archive:
        progress.stage(f"writing {name}{SUFFIX}")
        return keep(members_of(archive), archive.config, name, path.name, folder, progress)


def import_reference(
    reference: str,
    name: str | None,
    folder: Path,
    progress: ProgressListener,
    *,
    engine: str | None = None,
    fresh: bool = False,
) -> Image:
    """The image that `reference` means, as `name` in `folder`; what was imported under it before, unless `fresh`.

    Of all processes that ask at a time one imports, the others wait. enroot does it where it is installed, with its
    own credentials; else an engine. Raises ConfigError for what is no reference, ImageError.
    """
    check_image(reference)
    name = check_name(name or name_of(reference))
    target = folder / f"{name}{SUFFIX}"
    asked = time.time()

    def done() -> bool:
        found = imported(folder, reference, name)
        return found is not None and found.record is not None and not (fresh and found.record.created < asked)

    def work(place: Path) -> None:
        enroot = shutil.which("enroot")
        if enroot and not engine:
            _enroot(enroot, reference, name, place, folder, progress)
        else:
            _pulled(_some_engine(engine), reference, name, folder, progress)

    once(done, target, work)
    return Image(target, read_record(target))


def as_engines_write(reference: str) -> str:
    """`reference`, written as enroot does, as docker, podman and buildah do, its registry spelled out."""
    head, _, digest = reference.partition("@sha256:")
    head = head.rpartition("@")[2]  # enroot's USER@
    registry, _, image = head.rpartition("#")
    if not registry:
        registry, image = "docker.io", image if "/" in image else f"library/{image}"
    return f"{registry}/{image}" + (f"@sha256:{digest}" if digest else "")


def _some_engine(chosen: str | None) -> Engine:
    try:
        return find_engine(chosen)
    except ImageError as error:
        raise ImageError(error.message, f"{error.hint}; enroot would do too") from error


def _pulled(engine: Engine, reference: str, name: str, folder: Path, progress: ProgressListener) -> None:
    local = as_engines_write(reference)
    config = engine.describe(reference) if "#" not in reference else None  # built or pulled here before
    if config is not None:
        local = reference
    else:
        progress.stage(f"{engine.kind} pulls {local}")
        engine.pull(local, progress.say)
        config = engine.describe(local)
    if config is None:
        raise ImageError(f"{engine.kind} pulled {local} and does not have it", f"see: {engine.kind} images")
    progress.stage(f"writing {name}{SUFFIX}")
    with engine.exported(local) as stream:
        keep(members_of_stream(stream), config, name, reference, folder, progress)


def _enroot(enroot: str, reference: str, name: str, place: Path, folder: Path, progress: ProgressListener) -> None:
    progress.stage(f"enroot imports {reference}")
    sqsh = place / "image.sqsh"
    environment = {**os.environ, "ENROOT_SQUASH_OPTIONS": " ".join(COMPRESSION)}
    code, said = follow([enroot, "import", "--output", str(sqsh), f"docker://{reference}"], progress.say, environment)
    if code != 0 or not sqsh.is_file():
        message, hint = explain(said, "enroot")
        raise ImageError(f"enroot import failed: {message}", hint)
    _published(sqsh, name, reference, folder)


def _published(sqsh: Path, name: str, source: str, folder: Path) -> Image:
    """The finished squashfs `sqsh` under its name, described by what is in it."""
    inventory = Inventory()
    for line in _unsquashfs("-d", "", "-l", str(sqsh)).splitlines():
        inventory.see(line.removeprefix("/"))
    try:
        environment = _unsquashfs("-cat", str(sqsh), "etc/environment").splitlines()
    except ImageError:
        environment = []
    checksum = sha256_of(sqsh)
    record = ImageRecord(
        name=name,
        digest=f"sha256:{checksum}",
        sqsh=checksum,
        size=sqsh.stat().st_size,
        source=source,
        created=time.time(),
        python=inventory.python,
        versions=inventory.versions,
        environment=environment_of(environment),
    )
    return publish(sqsh, record, folder)


def _unsquashfs(*words: str) -> str:
    program = shutil.which("unsquashfs")
    if program is None:
        raise ImageError("no unsquashfs on PATH", "apt install squashfs-tools")
    done = subprocess.run([program, *words], capture_output=True, text=True, errors="surrogateescape", check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ImageError(f"unsquashfs failed: {last}", "is the file whole? copy it again")
    return done.stdout
