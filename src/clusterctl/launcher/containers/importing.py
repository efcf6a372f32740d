"""Import an image into the image folder: from an archive, a .sqsh, a local engine or a registry.

Processes that ask for the same image at the same time share one import.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.containers import contents as files
from clusterctl.launcher.containers.archive import ImageConfig, open_archive
from clusterctl.launcher.containers.contents import Image, unsquashfs
from clusterctl.launcher.containers.engine import Engine, failure, find_engine, follow
from clusterctl.launcher.containers.runtimes import check_image
from clusterctl.launcher.containers.squashfs import COMPRESSION, Member, members_of, members_of_stream, pack
from clusterctl.shared.errors import ConfigError, ImageError, NotFoundError
from clusterctl.shared.record.once import once

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.launcher.config.progress import ProgressListener

# enroot's notation for an image that an engine has on this machine, in the engine's own notation.
_ON_THIS_MACHINE = re.compile(r"(dockerd|podman)://([a-z0-9][\w./:@-]*)", re.ASCII)
_ARCHIVE_ENDINGS = re.compile(r"\.(sqsh|squashfs|tar|tar\.gz|tgz|tar\.zst|oci|docker)$")


def import_file(path: Path, name: str | None, folder: Path, progress: ProgressListener) -> Image:
    """Import the archive or .sqsh at `path` as the image `name` of `folder`. Raises NotFoundError, ImageError."""
    if not path.is_file():
        raise NotFoundError(f"no such file: {path}", "write an image in a registry as registry#name:tag")
    name = files.check_name(name or _ARCHIVE_ENDINGS.sub("", path.name))
    folder.mkdir(parents=True, exist_ok=True)
    if files.is_squashfs(path):
        progress.begin(f"copying {path.name}", path.stat().st_size)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder) as place:
            return _published(Path(shutil.copyfile(path, Path(place, "image.sqsh"))), name, path.name, folder)
    progress.begin(f"reading {path.name}")
    with open_archive(path) as archive:
        progress.begin(f"writing {name}{files.SUFFIX}")
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
    """Import `reference` as `name` into `folder`, or reuse an earlier import unless `fresh`.

    When several processes ask at once, one imports and the others wait. An image that an engine on this machine has is
    taken from there; dockerd://NAME and podman://NAME name nothing else. Others are fetched by enroot, with its own
    credentials, if it is installed, otherwise by an engine. Raises ConfigError for an invalid reference, ImageError.
    """
    local = _ON_THIS_MACHINE.fullmatch(reference)
    if not local:
        check_image(reference)
    name = files.check_name(name or files.name_of(reference))
    target = folder / f"{name}{files.SUFFIX}"
    asked = time.time()

    def done() -> bool:
        found = files.imported(folder, reference, name)
        return found is not None and found.record is not None and not (fresh and found.record.created < asked)

    def work(place: Path) -> None:
        enroot = None if engine else shutil.which("enroot")
        if local:
            packed(find_engine(local[1].removesuffix("d")), local[2], name, reference, folder, progress)
            return
        if enroot:
            with suppress(ImageError, ConfigError):  # no engine, or none that has it, built or pulled earlier
                holder = find_engine()
                if "#" not in reference and holder.describe(reference):
                    enroot = None
        if enroot:
            _enroot(enroot, reference, name, place, folder, progress)
            return
        try:
            found = find_engine(engine)
        except ImageError as error:
            raise ImageError(error.message, f"{error.hint}; or install enroot") from error
        _pulled(found, reference, name, folder, progress)

    once(done, target, work)
    return Image(target, files.read_record(target))


def keep(
    members: Iterable[Member], config: ImageConfig, name: str, source: str, folder: Path, progress: ProgressListener
) -> Image:
    """Pack `members` and `config` into a temporary file, then publish it as `name` in `folder`. Raises ImageError."""
    files.check_name(name)
    folder.mkdir(parents=True, exist_ok=True)
    scan = files.PackageScan()
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder) as place:
        sqsh = Path(place, "image.sqsh")
        pack(members, config, sqsh, seen=scan.see, progress=progress.advance)
        return files.publish(sqsh, folder, name, source, scan, config)


def packed(engine: Engine, reference: str, name: str, source: str, folder: Path, progress: ProgressListener) -> Image:
    """Pack the engine's image `reference` as NAME.sqsh in `folder`."""
    config = engine.known(reference)
    progress.begin(f"writing {name}{files.SUFFIX}")
    with engine.exported(reference) as stream:
        return keep(members_of_stream(stream), config, name, source, folder, progress)


def as_engines_write(reference: str) -> str:
    """Convert `reference` from enroot's notation to that of docker, podman and buildah, with an explicit registry."""
    head, _, digest = reference.partition("@sha256:")
    head = head.rpartition("@")[2]  # enroot's USER@
    registry, _, image = head.rpartition("#")
    if not registry:
        registry, image = "docker.io", image if "/" in image else f"library/{image}"
    return f"{registry}/{image}" + (f"@sha256:{digest}" if digest else "")


def _pulled(engine: Engine, reference: str, name: str, folder: Path, progress: ProgressListener) -> None:
    local = reference
    if "#" in reference or engine.describe(reference) is None:  # otherwise it was built or pulled here before
        local = as_engines_write(reference)
        progress.begin(f"{engine.kind} pulls {local}")
        engine.pull(local, progress.output)
    packed(engine, local, name, reference, folder, progress)


def _enroot(enroot: str, reference: str, name: str, place: Path, folder: Path, progress: ProgressListener) -> None:
    progress.begin(f"enroot imports {reference}")
    sqsh = place / "image.sqsh"
    environment = {**os.environ, "ENROOT_SQUASH_OPTIONS": " ".join(COMPRESSION)}
    command = [enroot, "import", "--output", str(sqsh), f"docker://{reference}"]
    code, output = follow(command, progress.output, environment)
    if code != 0 or not sqsh.is_file():
        raise failure("enroot", "import", output)
    _published(sqsh, name, reference, folder)


def _published(sqsh: Path, name: str, source: str, folder: Path) -> Image:
    """Publish the finished squashfs `sqsh`, with a record made from its contents."""
    try:
        listing = unsquashfs("-d", "", "-l", str(sqsh))
        environment = unsquashfs("-cat", str(sqsh), "etc/environment", check=False)
    except FileNotFoundError:
        raise ImageError("unsquashfs is not on PATH", "apt install squashfs-tools") from None
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no output"])[-1]
        raise ImageError(f"unsquashfs failed: {last}", "is the file complete? copy it again") from None
    scan = files.PackageScan()
    for line in listing.splitlines():
        scan.see(line.removeprefix("/"))
    config = ImageConfig(digest="", environment=tuple(environment.splitlines()))
    return files.publish(sqsh, folder, name, source, scan, config)
