"""sinfo: the virtual nodes, one line each, in the caller's own format."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from clusterctl.emulator import jobs, slots
from clusterctl.emulator.columns import long_format
from clusterctl.emulator.job_request import DEFAULT_PARTITION
from clusterctl.emulator.options import Options
from clusterctl.emulator.virtual_cluster import node_name
from clusterctl.errors import SlurmError

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.emulator.virtual_cluster import Machine

_SINFO = Options("noheader/h Node/N Format=/O")


class NodeRow(NamedTuple):
    """A node: what it has, what is free of it, and why it is down, if it is."""

    node: int
    machine: Machine
    free: slots.Free | None  # None: down
    reason: str


def main(machine: Machine, arguments: list[str]) -> int:
    options, _ = _SINFO.parse(arguments)
    if "Node" not in options or "Format" not in options:
        raise SlurmError("the emulator shows nodes alone, in a format: sinfo -N -O FIELD,...")
    jobs.bury_lost(machine)
    header, columns = long_format(options["Format"], _FIELDS)
    if "noheader" not in options:
        print(header)
    held = ((job.request, job.record) for job in jobs.all_jobs(machine) if job.is_supervised)
    free = {slot.node: slot for slot in slots.free_slots(machine, held)}
    for node in range(1, machine.nodes + 1):
        marker = machine.down_marker(node)
        print(columns(NodeRow(node, machine, free.get(node), marker.read_text() if marker.exists() else "none")))
    return 0


def _state(row: NodeRow) -> str:
    if row.free is None:
        return "down"
    used = _cpus_used(row)
    return "idle" if not used else "mixed" if used < row.machine.cpus_per_node else "allocated"


def _cpus_used(row: NodeRow) -> int:
    return row.machine.cpus_per_node - row.free.cpus if row.free else 0


def _cpus(row: NodeRow) -> str:
    total, used = row.machine.cpus_per_node, _cpus_used(row)
    idle, other = (total - used, 0) if row.free else (0, total)
    return f"{used}/{idle}/{other}/{total}"


def _gres(row: NodeRow) -> str:
    return f"gpu:{row.machine.gpus_per_node}" if row.machine.gpus_per_node else "(null)"


def _gres_used(row: NodeRow) -> str:
    return f"gpu:{row.machine.gpus_per_node - len(row.free.gpus) if row.free else 0}"


# The emulator keeps no account of memory: as on a cluster that does not, all of it is free.
_FIELDS: dict[str, Callable[[NodeRow], str]] = {
    "allocmem": lambda row: "0",  # noqa: ARG005
    "available": lambda row: "up",  # noqa: ARG005
    "cpusstate": _cpus,
    "features": lambda row: "(null)",  # noqa: ARG005
    "freemem": lambda row: "N/A",  # noqa: ARG005
    "gres": _gres,
    "gresused": _gres_used,
    "memory": lambda row: str(_memory_mib()),  # noqa: ARG005
    "nodehost": lambda row: node_name(row.node),
    "partition": lambda row: f"{DEFAULT_PARTITION}*",  # noqa: ARG005
    "reason": lambda row: row.reason or "none",
    "size": lambda row: "1-infinite",  # noqa: ARG005
    "statecomplete": _state,
    "time": lambda row: "infinite",  # noqa: ARG005
}


def _memory_mib() -> int:
    """This machine's: the virtual nodes have it in common."""
    import os

    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
