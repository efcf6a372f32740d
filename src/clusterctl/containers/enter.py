"""Run a command inside a .sqsh image without pyxis: unpack it once per node, enter it, exec the command.

Takes pyxis's flags. Unlike enroot it has no hooks (not even for GPU drivers) and no named containers.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from clusterctl.containers.contents import inside, parse_environment
from clusterctl.containers.namespaces import enter
from clusterctl.containers.pyxis import ContainerView
from clusterctl.containers.unpacked import hold, release
from clusterctl.errors import Cause, ClusterctlError, TaskError
from clusterctl.runs.files import read_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# enroot starts a login shell: /etc/profile and profile.d set PATH.
_LOGIN = ("/bin/sh", "-l")
_EXEC = ("-c", 'exec "$@"', "sh")
_RC = "/etc/rc"  # the image's own start-up script, as enroot writes it: cd WORKDIR, exec ENTRYPOINT CMD
_BACK = ("/bin/sh", "-c", 'cd "$0" && exec "$@"')  # from the image's WORKDIR to the task's own


def main(arguments: Sequence[str]) -> NoReturn:
    """`FLAGS -- COMMAND`: exec the command, or exit with the code of an error.

    `--release IMAGE` removes the image's tree from this node unless it is in use.
    """
    try:
        if arguments[:1] == ["--release"]:
            release(Path(arguments[1]))
            raise SystemExit(0)
        end = arguments.index("--") if "--" in arguments else len(arguments)
        become(ContainerView.parse(arguments[:end]), arguments[end + 1 :])
    except ClusterctlError as error:
        # `why` reads the cause from the task's log, as it does from the batch script's lines.
        start = f"clusterctl[{error.cause}]:" if "CLUSTERCTL_ATTEMPT" in os.environ else "error:"
        print(error.text.replace("error:", start, 1), file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code) from None


def become(view: ContainerView, command: Sequence[str]) -> NoReturn:
    """Exec `command` inside the image of `view`; without one, the image's own entry point."""
    tree = hold(Path(view.image), _owner(os.environ) if view.writable else "")
    enter(tree, view)
    environment = inside(os.environ, parse_environment(_text("/etc/environment").splitlines()), view.environment)
    if view.remap_root:
        environment["HOME"] = "/root"
    workdir = view.workdir or own_workdir(_text(_RC))
    try:
        os.chdir(workdir)
    except OSError as error:
        message = f"cannot use the working directory in the image: {workdir}: {error.strerror}"
        raise TaskError(message, "see [container] workdir", Cause.LAUNCH) from None
    words = program(command, entrypoint=view.entrypoint, rc=Path(_RC).is_file(), workdir=view.workdir)
    try:
        os.execve(_LOGIN[0], [*_LOGIN, *words], environment)
    except OSError as error:
        message = f"cannot start /bin/sh in {view.image}: {error.strerror}"
        raise TaskError(message, "was the image built for this machine's architecture?", Cause.IMAGE) from None


def _owner(environment: Mapping[str, str]) -> str:
    """Identifies who shares a writable tree: the tasks of one step on one node, as under pyxis."""
    names = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "SLURMD_NODENAME")
    words = [environment.get(name, "") for name in names]
    return re.sub(r"[^\w.-]", "_", ".".join(words)) if words[0] else str(os.getpid())


def program(command: Sequence[str], *, entrypoint: bool, rc: bool, workdir: str | None = None) -> list[str]:
    """The login shell's arguments: run `command` directly, or pass it to the image's entry point.

    `command` runs in `workdir` even if the entry point starts elsewhere.
    """
    if rc and (entrypoint or not command):
        return [_RC, *([*_BACK, workdir, *command] if workdir and command else command)]
    return [*_EXEC, *command] if command else []


def own_workdir(rc: str) -> str:
    """The directory that an image's /etc/rc changes to."""
    match = re.search(r"^\s*cd\s+(.+?)\s*(?:&&|\|\||;|$)", rc, re.MULTILINE)
    try:
        words = shlex.split(match[1]) if match else []
    except ValueError:
        words = []
    return words[0] if words else "/"


def _text(path: str) -> str:
    try:
        return read_whole(Path(path)).decode(errors="surrogateescape")
    except (OSError, ValueError):  # missing, or in a hostile image anything else
        return ""
