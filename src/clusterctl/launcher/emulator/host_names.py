"""Names for the virtual nodes: in the processes of a job, node1 and so on are names of this machine.

Programs often meet at the first name that `scontrol show hostnames` prints. Linux only.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.launcher.emulator.virtual_cluster import node_name

if TYPE_CHECKING:
    from clusterctl.launcher.emulator.virtual_cluster import Machine

_HOSTS = Path("/etc/hosts")
_HERE = "127.0.0.1"
# unshare(2), mount(2)
_NEW_MOUNTS, _BIND, _REC, _SLAVE = 0x20000, 4096, 16384, 1 << 19
_PATIENCE_SECONDS = 2.0  # with a name server that does not answer


def name_nodes(machine: Machine) -> None:
    """Give this thread, and the processes that it starts, an /etc/hosts with the nodes' names, if it is root's.

    Other users would need a user namespace, too. In one, setuid programs do not work, files of other users seem to
    belong to nobody, and no file can be given to another of one's groups: that would break more programs than it helps.
    """
    with suppress(OSError):
        known = _HOSTS.read_bytes().decode(errors="surrogateescape")
        wanted = with_names(known, [node_name(node) for node in range(1, machine.nodes + 1)])
        if wanted == known or os.geteuid() != 0:
            return
        table, path = os.fsencode(wanted), machine.bin / "hosts"
        if not path.is_file() or path.read_bytes() != table:  # replaced, never changed: running jobs keep theirs
            aside = path.with_name(f".hosts.{os.getpid()}-{time.time_ns()}")
            aside.write_bytes(table)
            aside.chmod(0o644)  # for programs that give up root's rights
            aside.rename(path)
        _replace_hosts(path)


def names_resolve(machine: Machine) -> bool:
    """Whether the processes of a job can find each other by the names of their nodes. Changes nothing here."""
    import socket  # late, like ctypes: what starts jobs need not wait for them
    from threading import Thread

    found = []

    def ask() -> None:
        name_nodes(machine)  # in this thread's view
        with suppress(OSError):
            found.append(socket.gethostbyname(node_name(machine.nodes)).startswith("127."))

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_PATIENCE_SECONDS)
    return found == [True]


def with_names(known: str, names: list[str]) -> str:
    """`known`, a table of hosts, with all `names` for this machine, and for no other."""
    kept, missing = [], list(names)
    for line in known.splitlines():
        address, *found = line.partition("#")[0].split() or [""]
        if address.startswith("127."):
            missing = [name for name in missing if name not in found]
            kept.append(line)
        elif set(names).isdisjoint(found):
            kept.append(line)
        elif others := [name for name in found if name not in names]:
            kept.append(" ".join([address, *others]))
    wanted = [*kept, *(f"{_HERE} {name}" for name in missing)]
    return known if wanted == known.splitlines() else "".join(f"{line}\n" for line in wanted)


def _replace_hosts(table: Path) -> None:
    """Mount `table` on /etc/hosts, in a mount namespace of this thread's own, where the kernel allows it."""
    import ctypes

    libc = ctypes.CDLL(None)
    # Mounts made outside still appear here; those made here do not appear outside.
    if libc.unshare(_NEW_MOUNTS) == 0 and libc.mount(None, b"/", None, ctypes.c_ulong(_REC | _SLAVE), None) == 0:
        libc.mount(os.fsencode(table), os.fsencode(_HOSTS), None, ctypes.c_ulong(_BIND), None)
