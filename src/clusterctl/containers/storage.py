"""How buildah and podman store images: as overlaid layers, or (driver vfs) with a full copy of everything per layer.

Without root they choose vfs if fuse-overlayfs is missing, although Linux has let users mount overlays since 5.13
(seen with buildah 1.28). So overlay is tried first, and if only vfs works, a build makes one layer instead of many.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.errors import ImageError
from clusterctl.runs.files import nearest_existing

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_ANSWER_SECONDS = 20
_BASE_BYTES = 300_000_000  # of a base image with Python
_COMPILED = 1.25  # installed size / unpacked wheels: includes Python's compiled files
_VFS_COPIES = 2  # the working container and the image made from it
OVERLAY_HINT = "apt install fuse-overlayfs, so that layers share their files"


@dataclass(frozen=True)
class Storage:
    """Where images are kept, and by which driver."""

    driver: str
    folder: Path

    @property
    def copies_layers(self) -> bool:
        return self.driver == "vfs"


def find_storage(program: str, environment: Mapping[str, str]) -> Storage | None:
    """The storage that buildah or podman uses, with overlay in place of vfs if that works; None if unknown."""
    own = _asked(program, environment)
    if own and own.copies_layers and "STORAGE_DRIVER" not in environment:
        other = _asked(program, {**environment, "STORAGE_DRIVER": "overlay"})
        return other if other and not other.copies_layers else own
    return own


def space_for(wheels: Iterable[Path], storage: Storage | None) -> int:
    """Estimated bytes that a build with `wheels` takes in image storage: the wheels and their unpacked contents."""
    needed = _BASE_BYTES
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        needed += wheel.stat().st_size + int(_COMPILED * unpacked)
    return needed * _VFS_COPIES + _BASE_BYTES if storage and storage.copies_layers else needed


def check_space(needed: int, storage: Storage | None) -> str:
    """A sentence about the space that the build needs and has. Raises ImageError if there is not enough."""
    words = f"the build takes about {needed / 1e9:.1f} GB"
    if storage is None:
        return words
    free = shutil.disk_usage(nearest_existing(storage.folder)).free
    words += f" of {free / 1e9:.1f} GB free in {storage.folder} ({storage.driver})"
    if needed > free:
        room = "free some space, or set CONTAINERS_STORAGE_CONF to a storage.conf with another graphroot"
        raise ImageError(f"not enough disk space: {words}", OVERLAY_HINT if storage.copies_layers else room)
    return f"{words}; {OVERLAY_HINT}" if storage.copies_layers else words


def _asked(program: str, environment: Mapping[str, str]) -> Storage | None:
    command = [program, "info", *(("--format", "json") if Path(program).name == "podman" else ())]
    try:
        done = subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
        )
        store: dict[str, Any] = json.loads(done.stdout)["store"]
        known = {name.lower(): value for name, value in store.items()}  # podman's names start in lower case
        return Storage(known["graphdrivername"], Path(known["graphroot"]))
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError, AttributeError):
        return None
