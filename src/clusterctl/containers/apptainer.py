"""Running images with Apptainer: a task's container view as arguments of `apptainer exec`.

Follows apptainer-exec(1) and Apptainer's user guide. Like pyxis, Apptainer passes on the host's variables except those
that the image sets itself; APPTAINERENV_X overrides the image's X.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clusterctl.errors import ConfigError

if TYPE_CHECKING:
    from clusterctl.containers.pyxis import ContainerView, Mount

# `$0` holds the names of the variables that the run sets. Their values must not show up in a process's arguments.
_HAND_ON = 'for n in $0; do eval "[ -z \\"\\${$n+x}\\" ] || export APPTAINERENV_$n=\\"\\$$n\\""; done; exec "$@"'
_ADDRESS = re.compile(r"(?:docker|oras|library)://[\w./:@-]+", re.ASCII)


def is_address(image: str) -> bool:
    """Whether Apptainer itself has to fetch the image, on each node."""
    return _ADDRESS.fullmatch(image) is not None


def runner(view: ContainerView, *, gpus: bool) -> tuple[str, ...]:
    """The words to put before a task's command. Raises ConfigError for a mount that Apptainer does not support."""
    switches = {
        "--nv": gpus,
        "--no-home": not view.mount_home,
        "--writable-tmpfs": view.writable,  # changes are discarded at the end, as pyxis does
        "--fakeroot": view.remap_root,
    }
    return (
        *("sh", "-c", _HAND_ON, " ".join(view.environment)),
        *("apptainer", "run" if view.entrypoint else "exec"),
        "--no-eval",  # the shell that starts the command would replace a `$` in a value
        "--no-mount=cwd",
        *(switch for switch, wanted in switches.items() if wanted),
        *(f"--bind={_bind(mount)}" for mount in view.mounts),
        *([f"--pwd={view.workdir}"] if view.workdir else []),
        view.image,
    )


def _bind(mount: Mount) -> str:
    if others := set(mount.flags) - {"ro", "rw"}:
        message = f"container.mounts: Apptainer supports only ro and rw: {', '.join(sorted(others))} in {mount}"
        raise ConfigError(message, "leave it out on this cluster")
    return ":".join([mount.source, mount.target, *mount.flags[:1]])
