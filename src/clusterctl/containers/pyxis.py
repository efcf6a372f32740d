"""The srun flags of pyxis, all of them explicit: a site's enroot.conf must not change what a run sees.

The container is unnamed: a named one outlives its job and leaves an unpacked image on every node.
Flags as in pyxis 0.24's `srun --help`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.containers.image import check_image
from clusterctl.containers.mounts import Mount

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.spec import Container

IMAGE_PYTHON = "/opt/venv/bin/python"


def pyxis_flags(container: Container, mounts: Iterable[Mount], environment: Iterable[str], workdir: str) -> list[str]:
    """The flags for `container`, or none where there is no image.

    `mounts` are the run's own; the container's come after them. `environment` names every variable that the run sets:
    an image's own value would win over the host's otherwise.
    """
    if not container.image:
        return []
    every = [*mounts, *(Mount.parse(text) for text in container.mounts)]
    for mount in every:
        mount.check()
    return [
        f"--container-image={check_image(container.image)}",
        f"--container-mounts={','.join(dict.fromkeys(map(str, every)))}",
        f"--container-workdir={container.workdir or workdir}",
        "--container-writable" if container.writable else "--container-readonly",
        "--container-mount-home" if container.mount_home else "--no-container-mount-home",
        "--container-remap-root" if container.remap_root else "--no-container-remap-root",
        "--container-entrypoint" if container.entrypoint else "--no-container-entrypoint",
        f"--container-env={','.join(sorted(set(environment)))}",
    ]
