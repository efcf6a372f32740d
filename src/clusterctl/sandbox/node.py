"""The nodes of a sandbox: on, off, cut off from the network, joined again, and what Slurm makes of them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.errors import NotFoundError, UsageError
from clusterctl.sandbox import marked_processes, network

if TYPE_CHECKING:
    from clusterctl.sandbox.description import Sandbox

READY_SECONDS = 30
_SECONDS_PER_NODE = 0.2  # more: each slurmd takes some processor time to start
_PAUSE_PER_NODE = 0.002  # between two questions: they take time from the daemons
_USABLE = ("idle", "mix", "alloc", "comp")  # "idle*" would be one that has not answered for a while


def switch_on(sandbox: Sandbox, *nodes: str) -> list[str]:
    """Start those of `nodes` whose slurmd does not run; their names."""
    alive = marked_processes.find(sandbox.path)  # once for all: it looks at every process of this machine
    of_node = {node: [process for process in alive if process.part == _known(sandbox, node)] for node in nodes}
    off = [node for node in nodes if not any(process.command == "slurmd" for process in of_node[node])]
    marked_processes.end(process for node in off for process in of_node[node])
    if not sandbox.namespaces:
        for node in off:
            marked_processes.start(sandbox.path, node, ["slurmd", "-D", "-N", node], sandbox.log(node))
    elif off:
        _start_in_namespaces(sandbox, off)
    return off


def _start_in_namespaces(sandbox: Sandbox, nodes: list[str]) -> None:
    network.unplug(sandbox, nodes)
    init = ["unshare", *network.NAMESPACES, "--fork", "--kill-child", "--mount-proc", "/bin/sh"]
    init += [str(Path(__file__).with_name("init.sh"))]
    ready, go = os.pipe()
    try:
        pids = {}
        for node in nodes:
            argv = [*init, node, sandbox.address_of(node), sandbox.folder]
            pids[node] = marked_processes.start(sandbox.path, node, argv, sandbox.log(node), stdin=ready).pid
        network.plug(sandbox, pids)
        os.write(go, b"\n" * len(nodes))  # a line for each of them
    finally:
        os.close(ready)
        os.close(go)


def switch_off(sandbox: Sandbox, node: str) -> None:
    """Take the power from `node`: everything on it dies at once, and Slurm hears nothing of it."""
    marked_processes.end(_processes(sandbox, node))
    if sandbox.namespaces:
        network.unplug(sandbox, [node])


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

    seconds, pause = READY_SECONDS + len(nodes) * _SECONDS_PER_NODE, len(nodes) * _PAUSE_PER_NODE
    log = sandbox.log("slurmctld")
    marked_processes.wait_until(usable, seconds, f"Slurm to see {', '.join(nodes)}", log, pause=pause)


def _set_cable(sandbox: Sandbox, node: str, *, joined: bool) -> None:
    if not sandbox.namespaces:
        raise UsageError("all nodes of this sandbox are this host: none can be cut off", "start it as root")
    if not _processes(sandbox, node):
        raise UsageError(f"{node} is off", f"clusterctl sandbox node on {node}")
    network.set_cable(sandbox, node, joined=joined)


def _processes(sandbox: Sandbox, node: str) -> list[marked_processes.Process]:
    _known(sandbox, node)
    return [process for process in marked_processes.find(sandbox.path) if process.part == node]


def _known(sandbox: Sandbox, node: str) -> str:
    if node not in sandbox.names:
        raise NotFoundError(f"no node of the sandbox: {node}", f"its nodes: {', '.join(sandbox.names)}")
    return node
