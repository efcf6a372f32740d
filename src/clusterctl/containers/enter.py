"""Run a command inside a .sqsh image without pyxis: unpack it once a node, enter it, become the command.

Takes pyxis's flags. What it lacks against enroot: hooks (of GPU drivers, too) and named containers.
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

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# enroot starts a login shell: /etc/profile and what lies in profile.d set PATH.
_LOGIN = ("/bin/sh", "-l")
_EXEC = ("-c", 'exec "$@"', "sh")
_RC = "/etc/rc"  # what the image itself starts, as enroot writes it: cd WORKDIR, exec ENTRYPOINT CMD


def main(arguments: Sequence[str]) -> NoReturn:
    """`FLAGS -- COMMAND`: becomes the command, or ends with the exit code of an error.

    `--release IMAGE` removes the image's tree from this node, unless someone runs in it.
    """
    try:
        if arguments[:1] == ["--release"]:
            release(Path(arguments[1]))
            raise SystemExit(0)
        end = arguments.index("--") if "--" in arguments else len(arguments)
        become(ContainerView.parse(arguments[:end]), arguments[end + 1 :])
    except ClusterctlError as error:
        # A task's log tells `why` the cause, as the batch script's lines do.
        start = f"clusterctl[{error.cause}]:" if "CLUSTERCTL_ATTEMPT" in os.environ else "error:"
        print(error.text.replace("error:", start, 1), file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code) from None


def become(view: ContainerView, command: Sequence[str]) -> NoReturn:
    """Turn this process into `command` inside the image of `view`; without one, into what the image itself starts."""
    tree = hold(Path(view.image), _owner(os.environ) if view.writable else "")
    enter(tree, view)
    environment = inside(os.environ, parse_environment(_text("/etc/environment").splitlines()), view.environment)
    if view.remap_root:
        environment["HOME"] = "/root"
    workdir = view.workdir or own_workdir(_text(_RC))
    try:
        os.chdir(workdir)
    except OSError as error:
        message = f"no folder to work in inside the image: {workdir}: {error.strerror}"
        raise TaskError(message, "see [container] workdir", Cause.LAUNCH) from None
    words = program(command, entrypoint=view.entrypoint, rc=Path(_RC).is_file())
    try:
        os.execve(_LOGIN[0], [*_LOGIN, *words], environment)
    except OSError as error:
        message = f"cannot start /bin/sh in {view.image}: {error.strerror}"
        raise TaskError(message, "is it an image of this machine's kind?", Cause.IMAGE) from None


def _owner(environment: Mapping[str, str]) -> str:
    """Who writes into a tree of their own: the tasks of one step on one node, as under pyxis."""
    names = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "SLURM_STEP_ID", "SLURMD_NODENAME")
    words = [environment.get(name, "") for name in names]
    return re.sub(r"[^\w.-]", "_", ".".join(words)) if words[0] else str(os.getpid())


def program(command: Sequence[str], *, entrypoint: bool, rc: bool) -> list[str]:
    """What the login shell is to do: `command` as it stands, or as the image's own entry point takes it."""
    if rc and (entrypoint or not command):
        return [_RC, *command]
    return [*_EXEC, *command] if command else []


def own_workdir(rc: str) -> str:
    """Where an image's /etc/rc goes first."""
    match = re.search(r"^\s*cd\s+(.+?)\s*(?:&&|\|\||;|$)", rc, re.MULTILINE)
    try:
        words = shlex.split(match[1]) if match else []
    except ValueError:
        words = []
    return words[0] if words else "/"


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
