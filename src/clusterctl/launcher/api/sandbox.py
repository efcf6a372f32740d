"""The sandbox: a real Slurm on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusterctl.launcher.sandbox import lifecycle
from clusterctl.launcher.sandbox import nodes as power
from clusterctl.launcher.sandbox.description import Sandbox, SandboxRequest, current, sandbox_folder
from clusterctl.shared.errors import SlurmError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NODE_COMMANDS", "Sandbox", "SandboxRequest", "down", "status", "switch", "up"]

NODE_COMMANDS: dict[str, Callable[[Sandbox, str], object]] = {
    "on": power.switch_on,
    "off": power.switch_off,
    "cut": power.cut,
    "join": power.join,
}


def up(request: SandboxRequest) -> tuple[Sandbox, bool]:
    """Start the sandbox; False if an equal one was already running. Raises SlurmError."""
    return lifecycle.up(sandbox_folder(), request)


def down() -> bool:
    """Stop the sandbox and everything on it; False if none was running."""
    return lifecycle.down(sandbox_folder())


def status() -> lifecycle.SandboxStatus:
    """The sandbox's running parts."""
    return lifecycle.status(sandbox_folder())


def switch(action: str, name: str) -> None:
    """Switch node `name` "on" or "off", "cut" it from the network, or "join" it again."""
    found = current(sandbox_folder())
    if found is None:
        raise SlurmError("no sandbox is running", "clusterctl sandbox up")
    if action not in NODE_COMMANDS:
        raise UsageError(f"no such action: {action}", f"one of {', '.join(NODE_COMMANDS)}")
    NODE_COMMANDS[action](found, name)
    if action == "on":
        power.wait_for(found, [name])
