"""Images run by Apptainer: what a task sees in its container, as words of `apptainer exec`.

By apptainer-exec(1) and Apptainer's user guide. Like pyxis, Apptainer hands on the host's variables but those that the
image has of its own; APPTAINERENV_X beats the image's X.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clusterctl.errors import ConfigError

if TYPE_CHECKING:
    from clusterctl.containers.pyxis import ContainerView, Mount

# The names of the variables that the run sets come as `$0`. Values must not show up among the words of a process.
_HAND_ON = 'for n in $0; do eval "[ -z \\"\\${$n+x}\\" ] || export APPTAINERENV_$n=\\"\\$$n\\""; done; exec "$@"'
_ADDRESS = re.compile(r"(?:docker|oras|library)://[\w./:@-]+", re.ASCII)


def is_address(image: str) -> bool:
    """Whether Apptainer itself is to fetch the image, on each node."""
    return _ADDRESS.fullmatch(image) is not None


def runner(view: ContainerView, *, gpus: bool) -> tuple[str, ...]:
    """What comes before the command of a task. Raises ConfigError for a mount that Apptainer cannot make."""
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
        message = f"container.mounts: Apptainer knows no flag but ro and rw: {', '.join(sorted(others))} in {mount}"
        raise ConfigError(message, "leave it out on this cluster")
    return ":".join([mount.source, mount.target, *mount.flags[:1]])
