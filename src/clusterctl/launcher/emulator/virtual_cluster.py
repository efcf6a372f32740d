"""The virtual cluster: its size, its nodes, and their names, which are names of this machine inside a job.

Programs often meet at the first name that `scontrol show hostnames` prints. Linux only.
"""

from __future__ import annotations

import json
import os
import re
import time
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.shared.record.plain_text import ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Machine(NamedTuple):
    """Nodes are numbered from 1; node 3 is called node3."""

    root: Path  # all files of the emulator: jobs/, down/, bin-*/
    bin: Path  # the stand-ins
    nodes: int
    cpus_per_node: int
    gpus_per_node: int
    kill_wait: float  # seconds between TERM and KILL
    gpu_type: str = ""

    @classmethod
    def load(cls, folder: Path) -> Machine:
        """The virtual cluster whose stand-ins are in `folder`."""
        settings = json.loads((folder / "settings.json").read_text())
        return cls(**{**settings, "root": Path(settings["root"]), "bin": folder})

    @property
    def jobs(self) -> Path:
        return self.root / "jobs"

    def down_marker(self, node: int) -> Path:
        """A file that exists, and holds the reason, while the node is down."""
        return self.root / "down" / node_name(node)

    def gpu_indices(self, node: int) -> range:
        """A node's share of this machine's GPUs, assigned in order, so that no two nodes share one."""
        return range((node - 1) * self.gpus_per_node, node * self.gpus_per_node)


def gres(gpus: int, gpu_type: str) -> str:
    """GPUs in Slurm's notation: gpu:4, gpu:a100:4."""
    return f"gpu:{gpu_type}:{gpus}" if gpu_type else f"gpu:{gpus}"


def node_name(node: int) -> str:
    return f"node{node}"


def node_list(nodes: Sequence[int]) -> str:
    """A set of nodes in Slurm's notation: node3, node[1-2], node[1,3-4]."""
    if len(nodes) == 1:
        return node_name(nodes[0])
    return f"node[{ranges(nodes)}]" if nodes else ""


def node_names(nodes: str) -> list[str]:
    """node1,node[3-5,7] -> node1, node3, node4, node5, node7"""
    found = []
    for prefix, numbers, plain in re.findall(r"([^,\[\]]+)\[([\d,-]+)\]|([^,\[\]]+)", nodes):
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", numbers):
            found += [f"{prefix}{number}" for number in range(int(first), int(last or first) + 1)]
        found += [plain] * bool(plain)
    return found


def per_node(counts: Iterable[int]) -> str:
    """One count per node in Slurm's notation: 2(x3),1."""
    lengths = [(count, len(list(group))) for count, group in groupby(counts)]
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in lengths)


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
        import ctypes

        libc = ctypes.CDLL(None)
        # In a mount namespace of this thread, where the kernel allows it: mounts made outside still appear here; those
        # made here do not appear outside.
        if libc.unshare(_NEW_MOUNTS) == 0 and libc.mount(None, b"/", None, ctypes.c_ulong(_REC | _SLAVE), None) == 0:
            libc.mount(os.fsencode(path), os.fsencode(_HOSTS), None, ctypes.c_ulong(_BIND), None)


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
