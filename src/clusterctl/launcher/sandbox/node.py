"""Switches the nodes of a sandbox on and off, disconnects and reconnects them, and reports Slurm's view of them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.sandbox import marked_processes, network
from clusterctl.shared.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from clusterctl.launcher.sandbox.description import Sandbox

READY_SECONDS = 30
_SECONDS_PER_NODE = 0.2  # additional timeout: each slurmd takes some CPU time to start
_PAUSE_PER_NODE = 0.002  # between two queries, which take time from the daemons
_USABLE = ("idle", "mix", "alloc", "comp")  # not "idle*", which means that it does not respond


def switch_on(sandbox: Sandbox, *nodes: str) -> list[str]:
    """Start those of `nodes` whose slurmd is not running; returns their names."""
    alive = marked_processes.find(sandbox.path)  # only once: it reads every process of this machine
    of_node = {node: [process for process in alive if process.part == _known(sandbox, node)] for node in nodes}
    off = [node for node in nodes if not any(process.command == "slurmd" for process in of_node[node])]
    marked_processes.end(process for node in off for process in of_node[node])
    if not sandbox.namespaces:
        for node in off:
            marked_processes.start(sandbox.path, node, ["slurmd", "-D", "-N", node], sandbox.log(node))
        return off
    if not off:
        return []
    network.unplug(sandbox, off)
    init = ["unshare", *network.NAMESPACES, "--fork", "--kill-child", "--mount-proc", "/bin/sh"]
    init += [str(Path(__file__).with_name("init.sh"))]
    ready, go = os.pipe()
    try:
        pids = {}
        for node in off:
            argv = [*init, node, sandbox.address_of(node), sandbox.folder]
            pids[node] = marked_processes.start(sandbox.path, node, argv, sandbox.log(node), stdin=ready).pid
        network.plug(sandbox, pids)
        os.write(go, b"\n" * len(off))  # one line per node
    finally:
        os.close(ready)
        os.close(go)
    return off


def switch_off(sandbox: Sandbox, node: str) -> None:
    """Simulate a power failure of `node`: everything on it dies at once, and Slurm is not notified."""
    marked_processes.end(_processes(sandbox, node))
    if sandbox.namespaces:
        network.unplug(sandbox, [node])


def cut(sandbox: Sandbox, node: str) -> None:
    """Disconnect `node` from the network; its tasks keep running."""
    _set_cable(sandbox, node, joined=False)


def join(sandbox: Sandbox, node: str) -> None:
    """Reconnect `node` to the network."""
    _set_cable(sandbox, node, joined=True)


def states(sandbox: Sandbox) -> dict[str, str]:
    """Node -> its state in sinfo ("idle", "mix", "down*"); empty if the controller does not answer."""
    if not marked_processes.answers((sandbox.address, sandbox.port_of("slurmctld"))):
        return {}  # sinfo would try for nine seconds
    argv = ["sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %t"]
    environment = marked_processes.environment(sandbox.path, "")
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=30, check=False)
    return dict(line.split() for line in done.stdout.splitlines())


def wait_for(sandbox: Sandbox, nodes: list[str]) -> None:
    """Wait until Slurm can use `nodes`. Raises SlurmError after the timeout."""

    def usable() -> bool:
        found = states(sandbox)
        return all(found.get(name, "unk").startswith(_USABLE) and found[name].isalpha() for name in nodes)

    seconds, pause = READY_SECONDS + len(nodes) * _SECONDS_PER_NODE, len(nodes) * _PAUSE_PER_NODE
    log = sandbox.log("slurmctld")
    marked_processes.wait_until(usable, seconds, f"Slurm to see {', '.join(nodes)}", log, pause=pause)


def _set_cable(sandbox: Sandbox, node: str, *, joined: bool) -> None:
    if not sandbox.namespaces:
        raise UsageError("cannot disconnect a node: all nodes of this sandbox are this host", "start it as root")
    if not _processes(sandbox, node):
        raise UsageError(f"{node} is off", f"clusterctl sandbox node on {node}")
    network.set_cable(sandbox, node, joined=joined)


def _processes(sandbox: Sandbox, node: str) -> list[marked_processes.Process]:
    _known(sandbox, node)
    return [process for process in marked_processes.find(sandbox.path) if process.part == node]


def _known(sandbox: Sandbox, node: str) -> str:
    if node not in sandbox.names:
        raise NotFoundError(f"no such node: {node}", f"nodes of the sandbox: {', '.join(sandbox.names)}")
    return node
