"""How buildah and podman keep images: layer upon layer, or (driver vfs) each layer as a copy of all that is below it.

Without root they take vfs wherever fuse-overlayfs is missing, though since 5.13 Linux lets a user mount overlays
(seen with buildah 1.28). So overlay is tried, and where only vfs is left, a build makes one layer instead of many.
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
_COMPILED = 1.25  # what is installed, against what the wheels hold: Python's compiled files come on top
_VFS_COPIES = 2  # the container at work, and the image that it becomes
OVERLAY_HINT = "apt install fuse-overlayfs: then layers share what they have in common"


@dataclass(frozen=True)
class Storage:
    """Where images are kept, and by which driver."""

    driver: str
    folder: Path

    @property
    def copies_layers(self) -> bool:
        return self.driver == "vfs"


def find_storage(program: str, environment: Mapping[str, str]) -> Storage | None:
    """The storage of buildah or podman: its own, but overlay instead of vfs where that works. None: it does not say."""
    own = _asked(program, environment)
    if own and own.copies_layers and "STORAGE_DRIVER" not in environment:
        other = _asked(program, {**environment, "STORAGE_DRIVER": "overlay"})
        return other if other and not other.copies_layers else own
    return own


def space_for(wheels: Iterable[Path], storage: Storage | None) -> int:
    """About how many bytes a build with `wheels` takes where images are kept: themselves, and what they unpack to."""
    needed = _BASE_BYTES
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        needed += wheel.stat().st_size + int(_COMPILED * unpacked)
    return needed * _VFS_COPIES + _BASE_BYTES if storage and storage.copies_layers else needed


def check_space(needed: int, storage: Storage | None) -> str:
    """How much room the build takes and has, in words. Raises ImageError where it cannot do."""
    words = f"the build takes about {needed / 1e9:.1f} GB"
    if storage is None:
        return words
    free = shutil.disk_usage(nearest_existing(storage.folder)).free
    words += f" of {free / 1e9:.1f} GB free in {storage.folder} ({storage.driver})"
    if needed > free:
        room = "make room, or keep images elsewhere: CONTAINERS_STORAGE_CONF names a storage.conf with a graphroot"
        raise ImageError(f"too little room: {words}", OVERLAY_HINT if storage.copies_layers else room)
    return f"{words}; {OVERLAY_HINT}" if storage.copies_layers else words


def _asked(program: str, environment: Mapping[str, str]) -> Storage | None:
    command = [program, "info", *(("--format", "json") if Path(program).name == "podman" else ())]
    try:
        done = subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
        )
        store: dict[str, Any] = json.loads(done.stdout)["store"]
        known = {name.lower(): value for name, value in store.items()}  # podman's begin in lower case
        return Storage(known["graphdrivername"], Path(known["graphroot"]))
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError, AttributeError):
        return None
