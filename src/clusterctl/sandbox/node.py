"""The nodes of a sandbox: on, off, cut off from the network, joined again, and what Slurm makes of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.errors import NotFoundError, UsageError
from clusterctl.sandbox import marked_processes, network

if TYPE_CHECKING:
    from clusterctl.sandbox.description import Sandbox

READY_SECONDS = 30
_USABLE = ("idle", "mix", "alloc", "comp")  # "idle*" would be one that has not answered for a while


def switch_on(sandbox: Sandbox, node: str) -> bool:
    """Start `node`; False if its slurmd runs."""
    of_node = _processes(sandbox, node)
    if any(process.command == "slurmd" for process in of_node):
        return False
    marked_processes.end(of_node)
    if not sandbox.namespaces:
        marked_processes.start(sandbox.path, node, ["slurmd", "-D", "-N", node], sandbox.log(node))
        return True
    network.unplug(sandbox, node)
    init = [sys.executable, "-I", "-S", str(Path(__file__).with_name("init.py"))]
    argv = ["unshare", *network.NAMESPACES, "--fork", "--kill-child", "--mount-proc", *init]
    argv += [node, sandbox.address_of(node), sandbox.folder]
    process = marked_processes.start(sandbox.path, node, argv, sandbox.log(node))
    network.plug(sandbox, node, process.pid)
    return True


def switch_off(sandbox: Sandbox, node: str) -> None:
    """Take the power from `node`: everything on it dies at once, and Slurm hears nothing of it."""
    marked_processes.end(_processes(sandbox, node))
    if sandbox.namespaces:
        network.unplug(sandbox, node)


def cut(sandbox: Sandbox, node: str) -> None:
    """Take `node` off the network; its tasks go on."""
    _set_cable(sandbox, node, joined=False)


def join(sandbox: Sandbox, node: str) -> None:
    """Put `node` back on the network."""
    _set_cable(sandbox, node, joined=True)


def states(sandbox: Sandbox) -> dict[str, str]:
    """Node -> its state in sinfo's words ("idle", "mix", "down*"); nothing when the controller is silent."""
    if not marked_processes.answers((sandbox.address, sandbox.port_of("slurmctld"))):
        return {}  # sinfo would try for nine seconds
    argv = ["sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %t"]
    environment = marked_processes.environment(sandbox.path, "")
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=30, check=False)
    return dict(line.split() for line in done.stdout.splitlines())


def wait_for(sandbox: Sandbox, nodes: list[str]) -> None:
    """Wait until Slurm can use `nodes`. Raises SlurmError when it cannot in time."""

    def usable() -> bool:
        found = states(sandbox)
        return all(found.get(name, "unk").startswith(_USABLE) and found[name].isalpha() for name in nodes)

    marked_processes.wait_until(usable, READY_SECONDS, f"Slurm to see {', '.join(nodes)}", sandbox.log("slurmctld"))


def _set_cable(sandbox: Sandbox, node: str, *, joined: bool) -> None:
    if not sandbox.namespaces:
        raise UsageError("all nodes of this sandbox are this host: none can be cut off", "start it as root")
    if not _processes(sandbox, node):
        raise UsageError(f"{node} is off", f"clusterctl sandbox node on {node}")
    network.set_cable(sandbox, node, joined=joined)


def _processes(sandbox: Sandbox, node: str) -> list[marked_processes.Process]:
    if node not in sandbox.names:
        raise NotFoundError(f"no node of the sandbox: {node}", f"its nodes: {', '.join(sandbox.names)}")
    return [process for process in marked_processes.find(sandbox.path) if process.part == node]
