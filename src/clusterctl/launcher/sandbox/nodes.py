"""The nodes of a sandbox: switching them on and off, disconnecting them, Slurm's view of them, and their network.

The network is a bridge in its own namespace, with a link to this host and one to each node. This host's firewall does
not filter traffic on that bridge. A link disappears with the namespace of either end.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import socket
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.sandbox import marked_processes
from clusterctl.shared.errors import NotFoundError, SlurmError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from clusterctl.launcher.sandbox.description import Sandbox


NAMESPACES = ("--net", "--uts", "--mount", "--ipc", "--pid")


def namespaces_allowed() -> bool:
    """Whether this user can create namespaces and bridges here."""
    try:
        _run(["unshare", *NAMESPACES, "--fork", "--mount-proc", "ip", "link", "add", "probe", "type", "bridge"])
    except (OSError, SlurmError):
        return False
    return os.geteuid() == 0  # root of a user namespace could too, but could not connect this host


def free_network(folder: Path) -> str:
    """A /24 network in 10.0.0.0/8 that is not routed by this host, given by its first three numbers.

    The search starts at a number derived from the folder, so that two sandboxes rarely choose the same network.
    """
    routes = json.loads(_ip("-json", "-4", "route", "show", "table", "all") or "[]")
    taken = [ipaddress.ip_network(route["dst"], strict=False) for route in routes if route["dst"] != "default"]
    for number in range(1 << 16):
        high, low = divmod((int(_digest(folder), 16) + number) % (1 << 16), 256)
        candidate = ipaddress.IPv4Network(f"10.{high}.{low}.0/24")
        if not any(candidate.overlaps(network) for network in taken):
            return f"10.{high}.{low}"
    raise SlurmError("no free network for the nodes: this host's routes cover all of 10.0.0.0/8")


def free_ports(count: int) -> tuple[int, ...]:
    """Ports that are unused on all addresses of this host."""
    sockets = [socket.create_server(("", 0)) for _ in range(count)]
    ports = tuple(int(listener.getsockname()[1]) for listener in sockets)
    for listener in sockets:
        listener.close()
    return ports


def cable_name(folder: Path) -> str:
    """The name of this host's end of its link, derived from the folder so that no record is needed."""
    return f"cc-{_digest(folder)}"


def lay_network(sandbox: Sandbox) -> None:
    """Start the switch and connect this host to it."""
    argv, log = ["unshare", "--net", "sleep", "infinity"], sandbox.log("switch")
    switch = marked_processes.start(sandbox.path, "switch", argv, log)
    marked_processes.wait_until(lambda: _has_own_network(switch.pid), 5, "the switch", log)
    cable = cable_name(sandbox.path)
    _ip_inside(switch.pid, "link add switch type bridge", "link set switch up")
    _ip("link", "add", cable, "type", "veth", "peer", "host", "netns", str(switch.pid))
    _ip_inside(switch.pid, "link set host master switch up")
    _ip("addr", "add", f"{sandbox.address}/24", "dev", cable)
    _ip("link", "set", cable, "up")


def remove_network(folder: Path) -> None:
    """Remove this host's link, unless the kernel was faster."""
    cable = cable_name(folder)

    def gone() -> bool:
        return all(name != cable for _, name in socket.if_nameindex())

    if not gone():
        _run(["ip", "link", "del", cable], check=False)
        marked_processes.wait_until(gone, 5, f"{cable} to go")


def plug(sandbox: Sandbox, pids: Mapping[str, int]) -> None:
    """Connect the network namespace of each node's process to the switch; the node sets its own address."""
    switch = _switch(sandbox)
    for node, pid in pids.items():
        marked_processes.wait_until(partial(_has_own_network, pid), 5, f"{node} to start", sandbox.log(node))
    links = (f"link add eth0 netns {pid} type veth peer {node} netns {switch}" for node, pid in pids.items())
    _run(["ip", "-batch", "-"], "\n".join(links))
    _ip_inside(switch, *(f"link set {node} master switch up" for node in pids))


def unplug(sandbox: Sandbox, nodes: Iterable[str]) -> None:
    """Remove the links of nodes that are off, unless the kernel was faster."""
    _ip_inside(_switch(sandbox), *(f"link del {node}" for node in nodes), check=False)


def _switch(sandbox: Sandbox) -> int:
    for process in marked_processes.find(sandbox.path):
        if process.part == "switch":
            return process.pid
    raise SlurmError("the sandbox's network is not running", "clusterctl sandbox up")


def _digest(folder: Path) -> str:
    return hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]


def _has_own_network(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
    except OSError:  # it has ended
        return False


def _ip(*words: str) -> str:
    return _run(["ip", *words])


def _ip_inside(pid: int, *lines: str, check: bool = True) -> None:
    """Run `ip` once for all `lines` in the network namespace of process `pid`; without `check`, ignoring errors."""
    force = [] if check else ["-force"]
    _run(["nsenter", f"--net=/proc/{pid}/ns/net", "ip", *force, "-batch", "-"], "\n".join(lines), check=check)


def _run(argv: list[str], lines: str = "", *, check: bool = True) -> str:
    environment = {**os.environ, "PATH": marked_processes.PATH}
    done = subprocess.run(argv, input=lines, capture_output=True, text=True, env=environment, check=False)
    if check and done.returncode:
        raise SlurmError(f"{' '.join(argv)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


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
    unplug(sandbox, off)
    init = ["unshare", *NAMESPACES, "--fork", "--kill-child", "--mount-proc", "/bin/sh"]
    init += [str(Path(__file__).with_name("init.sh"))]
    ready, go = os.pipe()
    try:
        pids = {}
        for node in off:
            argv = [*init, node, sandbox.address_of(node), sandbox.folder]
            pids[node] = marked_processes.start(sandbox.path, node, argv, sandbox.log(node), stdin=ready).pid
        plug(sandbox, pids)
        os.write(go, b"\n" * len(off))  # one line per node
    finally:
        os.close(ready)
        os.close(go)
    return off


def switch_off(sandbox: Sandbox, node: str) -> None:
    """Simulate a power failure of `node`: everything on it dies at once, and Slurm is not notified."""
    marked_processes.end(_processes(sandbox, node))
    if sandbox.namespaces:
        unplug(sandbox, [node])


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
    _ip_inside(_switch(sandbox), f"link set {node} {'up' if joined else 'down'}")


def _processes(sandbox: Sandbox, node: str) -> list[marked_processes.Process]:
    _known(sandbox, node)
    return [process for process in marked_processes.find(sandbox.path) if process.part == node]


def _known(sandbox: Sandbox, node: str) -> str:
    if node not in sandbox.names:
        raise NotFoundError(f"no such node: {node}", f"nodes of the sandbox: {', '.join(sandbox.names)}")
    return node
