"""Where the ranks of an attempt meet: an address of rank 0's host, and the file that announces it to the others.

No port is guessed: rank 0 binds a free one, keeps it, and publishes it in the attempt's folder. Standard library only:
the user's own program meets the same way.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.shared.errors import Cause, TaskError
from clusterctl.shared.record.files import is_listed, read_json, write_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clusterctl.shared.record.layout import Attempt
    from clusterctl.shared.record.place import Place

TIMEOUT_SECONDS = 300.0  # the slowest rank may still be unpacking its image or importing torch
_LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915  # netdevice(7)
_LISTENERS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))  # proc(5)
_LISTEN = "0A"


def own_address(place: Place, interface: str | None = None) -> str:
    """The IPv4 address at which the other ranks reach this host.

    The address of the cluster's `interface` (default: CLUSTERCTL_INTERFACE); else of the host name; else, because
    Debian maps the host name to the loopback address, the one on the route to the node that srun was called on. The
    loopback address if all ranks share one node. Raises TaskError for an interface without an address.
    """
    if interface := interface or os.environ.get("CLUSTERCTL_INTERFACE"):
        return _interface_address(interface)
    if place.nodes == 1:
        return _LOOPBACK
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        address = _LOOPBACK
    if not address.startswith("127."):
        return address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((os.environ.get("SLURM_LAUNCH_NODE_IPADDR", ""), 9))  # sends nothing, but picks a route
        except OSError:
            return _LOOPBACK
        facing: str = probe.getsockname()[0]
        return facing


def reserve_port(address: str) -> socket.socket:
    """A socket that is bound to a free port of `address`, but not listening.

    While it stays bound, Linux lets another socket with SO_REUSEADDR listen on the port, so it can be announced and
    reserved for a program that opens it later. That can be another user's program, too: see `taken_by_another`.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((address, 0))
    return holder


def taken_by_another(port: int, tables: Sequence[Path] = _LISTENERS) -> bool:
    """Whether another user's process listens on `port` of this host, reserved or not: see `reserve_port`."""
    listening = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    return any(
        state == _LISTEN and int(local.rpartition(":")[2], 16) == port and int(uid) != os.geteuid()
        for _, local, _, state, _, _, _, uid, *_ in listening
    )


def publish(attempt: Attempt, host: str, port: int) -> None:
    """Publish rank 0's address to the other ranks."""
    write_json(attempt.rendezvous, {"host": host, "port": port})


def find(attempt: Attempt, timeout: float = TIMEOUT_SECONDS) -> tuple[str, int]:
    """Wait for rank 0's address: host and port.

    Polls by listing the folder: NFS caches for a while that a name does not exist, but shows new entries of a changed
    folder. Raises TaskError after `timeout` seconds.
    """
    deadline, pause = time.monotonic() + timeout, 0.02
    while not is_listed(attempt.rendezvous) or (record := read_json(attempt.rendezvous)) is None:
        if time.monotonic() > deadline:
            raise TaskError(
                f"rank 0 published no address within {timeout:.0f} s: {attempt.rendezvous}",
                f"clusterctl logs {attempt.path.parent.parent.name} --rank 0",
                Cause.NETWORK,
            )
        time.sleep(pause)
        pause = min(1.0, pause * 1.2)
    return record["host"], record["port"]


def _interface_address(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        except OSError as error:
            names = ", ".join(name for _, name in socket.if_nameindex())
            raise TaskError(
                f"{socket.gethostname()} has no IPv4 address on interface {interface}: {error.strerror}",
                f"set `interface` in the cluster file to one of: {names}",
                Cause.NETWORK,
            ) from None
    return socket.inet_ntoa(answer[20:24])
