"""sinfo: the virtual nodes, one per line, in the caller's format."""

from __future__ import annotations

import os
from operator import itemgetter

from clusterctl.launcher.emulator import jobs, scheduling
from clusterctl.launcher.emulator.job_request import DEFAULT_PARTITION, Options
from clusterctl.launcher.emulator.output import long_format
from clusterctl.launcher.emulator.virtual_cluster import Machine, gres, node_name
from clusterctl.shared.errors import SlurmError

_SINFO = Options("noheader/h Node/N Format=/O")


def main(machine: Machine, arguments: list[str]) -> int:
    options, _ = _SINFO.parse(arguments)
    if "Node" not in options or "Format" not in options:
        raise SlurmError("the emulator shows only nodes, in a given format: sinfo -N -O FIELD,...")
    jobs.bury_lost(machine)
    held = ((job.request, job.record) for job in jobs.all_jobs(machine) if job.is_supervised)
    free = {slot.node: slot for slot in scheduling.free_slots(machine, held)}
    total, rows = machine.cpus_per_node, []
    for node in range(1, machine.nodes + 1):
        slot, marker = free.get(node), machine.down_marker(node)  # no slot: the node is down
        used = total - slot.cpus if slot else 0
        up = "idle" if not used else "mixed" if used < total else "allocated"
        row = {
            "allocmem": "0",  # the emulator does not track memory: all of it is free
            "available": "up",
            "cpusstate": f"{used}/{total - used}/0/{total}" if slot else f"0/0/{total}/{total}",
            "features": "(null)",
            "freemem": "N/A",
            "gres": gres(machine.gpus_per_node, machine.gpu_type) if machine.gpus_per_node else "(null)",
            "gresused": gres(machine.gpus_per_node - len(slot.gpus) if slot else 0, machine.gpu_type),
            "memory": str(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20),  # this machine's, in MiB
            "nodelist": node_name(node),
            "partition": f"{DEFAULT_PARTITION}*",
            "reason": (marker.read_text() if marker.exists() else "") or "none",
            "size": "1-infinite",
            "statecomplete": up if slot else "down",
            "time": "infinite",
        }
        rows.append(row)
    header, columns = long_format(options["Format"], {name: itemgetter(name) for name in rows[0]})
    lines = [] if "noheader" in options else [header]
    print(*lines, *map(columns, rows), sep="\n")
    return 0
