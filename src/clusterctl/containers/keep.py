"""A root file system becomes an image of the image folder: packed aside, described, then renamed into place."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.containers.folder import Image, check_name, publish, sha256_of
from clusterctl.containers.record import ImageRecord, Inventory, environment_of
from clusterctl.containers.squashfs import pack

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.containers.archive import ImageConfig
    from clusterctl.containers.listener import ProgressListener
    from clusterctl.containers.squashfs import Member


def keep(
    members: Iterable[Member], config: ImageConfig, name: str, source: str, folder: Path, progress: ProgressListener
) -> Image:
    """Write `members` and `config` as the image `name` of `folder`. Raises ImageError."""
    check_name(name)
    folder.mkdir(parents=True, exist_ok=True)
    inventory = Inventory()
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=folder) as place:
        sqsh = Path(place, "image.sqsh")
        pack(members, config, sqsh, seen=inventory.see, progress=progress.advance)
        record = ImageRecord(
            name=name,
            digest=config.digest,
            sqsh=sha256_of(sqsh),
            size=sqsh.stat().st_size,
            source=source,
            created=time.time(),
            python=inventory.python,
            versions=inventory.versions,
            environment=environment_of(config.environment),
            labels=dict(config.labels),
        )
        return publish(sqsh, record, folder)
