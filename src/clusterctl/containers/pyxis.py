"""From a job's [container] to what its tasks see, all of it explicit: a site's enroot.conf must not change a run.

The container is unnamed: a named one outlives its job and leaves an unpacked image on every node.
Flags as in pyxis 0.24's `srun --help`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.containers.mounts import Mount
from clusterctl.containers.references import check_image
from clusterctl.containers.view import View

if TYPE_CHECKING:
    from collections.abc import Iterable

    from clusterctl.spec import Container

IMAGE_PYTHON = "/opt/venv/bin/python"


def make_view(
    image: str, container: Container, mounts: Iterable[Mount], environment: Iterable[str], workdir: str | None
) -> View:
    """What the tasks of a job see in `image`.

    `mounts` are the run's own. `environment` names every variable that the run sets: an image's own value would win
    over the host's otherwise. Raises ConfigError for what the grammar of the flags cannot carry.
    """
    every = [*mounts, *(Mount.parse(text) for text in container.mounts)]
    for mount in every:
        mount.check()
    return View(
        image=check_image(image),
        # A folder comes before what is mounted below it, which it would hide.
        mounts=tuple(sorted(every, key=lambda mount: mount.target.count("/"))),
        workdir=container.workdir or workdir,
        writable=container.writable,
        mount_home=container.mount_home,
        remap_root=container.remap_root,
        entrypoint=container.entrypoint,
        environment=tuple(sorted(set(environment))),
    )
